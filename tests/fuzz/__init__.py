"""A machine that finds the next wrong number: random small networks, and independent truths to hold against them."""

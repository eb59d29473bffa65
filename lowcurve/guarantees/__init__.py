"""What can be promised about a network, everywhere and not only at the samples? Operator norms, Lipschitz and
Hessian bounds, and certified radii; every figure here is an upper bound on the truth (a radius: a lower one)."""

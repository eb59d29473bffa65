"""What can be promised about a network, everywhere and not only at the samples that were looked at?

Operator norms, Lipschitz and Hessian bounds, and certified radii. Upper bounds are never below the truth, radii never
above it, rounding included; what cannot be bounded is refused by name.
"""

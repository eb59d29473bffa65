"""How does an existing model become a low-curvature one, and a low-curvature one a plain one again?"""

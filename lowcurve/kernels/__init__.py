"""What is computed in one pass, and on which device? Operators: their value, gradient and second order."""

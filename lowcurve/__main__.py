"""`python -m lowcurve`, for torchrun."""

from lowcurve.cli import main

main()

"""Leave out doctests of modules whose imports are not installed: Triton is for Linux alone."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("triton") else ["lowcurve/kernels/triton/*.py"]

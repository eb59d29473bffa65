"""Does everything work where no C compiler was at hand? The essentials again, in a process without compiled loops."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
# The module that holds the loops is hidden before anything is imported; then pytest runs as usual.
HIDE = """
import importlib.util, sys
found = importlib.util.find_spec
hide = lambda name, package=None: None if name == "lowcurve.kernels.cpu._compiled" else found(name, package)
importlib.util.find_spec = hide
from lowcurve.kernels.cpu.library import LIBRARY
assert LIBRARY is None
import pytest
sys.exit(pytest.main(sys.argv[1:]))
"""
ESSENTIALS = (
    "tests/layers/test_softplus.py",
    "tests/layers/test_batchnorm.py",
    "tests/kernels/test_ops.py",
    "tests/training/test_step.py::test_loss_and_gradient_equal_the_reference",
)
SLOW = "opcheck or operators_pass or transforms or resnet18"


def test_the_essentials_pass_without_compiled_loops() -> None:
    command = [sys.executable, "-c", HIDE, "-x", "-q", "-p", "no:xdist", "-k", f"not ({SLOW})", *ESSENTIALS]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]

"""The GPU kernels without a GPU: interpreted on the CPU against float64, and compiled for each kind of GPU."""

import os
import subprocess
import sys

import pytest

# The interpreter of 3.3 cannot read the arrays of NumPy 2.4, and its compiler wants a linker of ROCm.
pytest.importorskip("triton", minversion="3.7")
kernels = pytest.importorskip("benchmarks.kernels")


def test_interpreted_kernels_equal_the_definitions() -> None:
    command = [sys.executable, "-m", "tests.kernels.interpret"]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("target", kernels.TARGETS)
def test_kernels_compile(target: str) -> None:
    for kernel in kernels.compile_all(target, "bf16"):
        assert kernel.binary_bytes > 0
        assert kernel.spills == 0, kernel

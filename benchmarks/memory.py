"""How much memory does a training step need at its peak, beyond a process that has only imported and built the net?

python -m benchmarks.memory lcnn
"""

import os
import subprocess
import sys
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.clock import peak_on_gpu
from benchmarks.steps import CPU, ROWS
from lowcurve.methods import build
from lowcurve.training.step import TrainingStep


def peak_megabytes(row: str) -> float:
    """Run two steps of `row` in a process of its own and return what its peak memory rose by.

    The allocator is told to give memory back at once, so that the peak is of what was alive, not of what was kept.
    """
    command = [sys.executable, "-m", "benchmarks.memory", row]
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    run = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return float(run.stdout)


def _measure(row: str) -> float:
    step, x, y = _work(row, CPU)
    step(x[:2], y[:2])
    before = _megabytes("VmRSS")
    for _ in range(2):
        step(x, y)
    return _megabytes("VmHWM") - before  # the peak since the program started, unlike ru_maxrss not its parent's


def peak_on(device: torch.device, row: str) -> float:
    """Return what the peak memory of a step of `row` on a GPU exceeds that before by, in megabytes."""
    step, x, y = _work(row, device)
    step(x, y)
    return peak_on_gpu(device, lambda: step(x, y))


def _work(row: str, device: torch.device) -> tuple[TrainingStep, Tensor, Tensor]:
    torch.manual_seed(0)
    net = build(ROWS[row].method, "resnet18", (3, 32, 32), 10, width=16).train().to(device)
    x, y = torch.rand(128, 3, 32, 32).to(device), torch.randint(0, 10, (128,)).to(device)
    return TrainingStep(net, ROWS[row].method, ROWS[row].coefficients), x, y


def _megabytes(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(field)) / 1024


if __name__ == "__main__":
    print(_measure(sys.argv[1]))

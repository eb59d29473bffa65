"""How much memory does a training step need at its peak, beyond a process that has only imported and built the net?

python -m benchmarks.memory lcnn
"""

import os
import subprocess
import sys
from pathlib import Path

import torch

from benchmarks.steps import ROWS
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
    name, changes, *_ = ROWS[row]
    torch.manual_seed(0)
    net = build(name, "resnet18", (3, 32, 32), 10, width=16).train()
    x, y = torch.rand(128, 3, 32, 32), torch.randint(0, 10, (128,))
    step = TrainingStep(net, name, changes)
    step(x[:2], y[:2])
    before = _megabytes("VmRSS")
    for _ in range(2):
        step(x, y)
    return _megabytes("VmHWM") - before  # the peak since the program started, unlike ru_maxrss not its parent's


def _megabytes(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(field)) / 1024


if __name__ == "__main__":
    print(_measure(sys.argv[1]))

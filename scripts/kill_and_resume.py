"""Kill a run with SIGKILL at random moments, resume it, and compare the final weights bit by bit.

    python scripts/kill_and_resume.py --times 20

Each of the runs is killed once, at a moment drawn uniformly from the length of an undisturbed run, and resumed by a
new process. Prints one line per run and ends with status 1 if any bit differs.
"""

import argparse
import hashlib
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

import torch

from lowcurve.training.checkpoint import latest_checkpoint
from lowcurve.training.config import Config, parse_config
from lowcurve.training.loop import train


def recipe(folder: Path, name: str) -> Config:
    """A convolutional run with batch norm, power iteration, double backprop and random attacks."""
    return parse_config(
        {
            "name": name,
            "output": str(folder),
            "data": {"name": "digits", "limit_train": 512, "limit_test": 100, "augmentation": ["crop"]},
            "model": {"name": "resnet18", "width": 4},
            "method": {"name": "lcnn+gradreg+adv"},
            "train": {"epochs": 2, "batch_size": 64, "lr": 0.05, "checkpoint_seconds": 0.3},
        }
    )


def start(config: Config) -> int:
    """Train in a process of its own; return its id."""
    process = os.fork()
    if process == 0:
        status = 1
        try:
            torch.set_num_threads(1)
            train(config, resume="auto")
            status = 0
        finally:
            os._exit(status)
    return process


def digest(config: Config) -> str:
    """Name the final weights by their content."""
    return hashlib.sha256((config.folder / "model.safetensors").read_bytes()).hexdigest()


def main() -> int:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    chance, equal = random.Random(options.seed), 0
    with tempfile.TemporaryDirectory() as folder:
        whole = recipe(Path(folder), "whole")
        clock = time.monotonic()
        os.waitpid(start(whole), 0)
        length = time.monotonic() - clock
        expected = digest(whole)
        sys.stdout.write(f"undisturbed: {length:.1f} s, sha256 {expected[:16]}\n")
        for number in range(options.times):
            config = recipe(Path(folder), f"killed-{number}")
            moment = chance.uniform(0, length)
            process = start(config)
            time.sleep(moment)
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            saved = latest_checkpoint(config.folder / "checkpoints") if config.folder.exists() else None
            os.waitpid(start(config), 0)
            same = digest(config) == expected
            equal += same
            where, result = f"step {saved.position.total}" if saved else "the start", "equal" if same else "DIFFERENT"
            sys.stdout.write(f"{number + 1:3d}  killed after {moment:5.2f} s, resumed from {where:9s}  {result}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{equal} of {options.times} runs end with the same bits\n")
    return 0 if equal == options.times else 1


if __name__ == "__main__":
    raise SystemExit(main())

"""A network with everything that a checkpoint must keep, a recipe for it, and child processes to end."""

import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from lowcurve.training.config import Config, parse_config
from lowcurve.training.runs import Run


def small_net() -> nn.Module:
    """Convolutions and batch norms for the surgery, dropout for noise."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Flatten(),
        nn.Linear(128, 10),
    )


def quiet_net() -> nn.Module:
    """The same without noise."""
    return nn.Sequential(*(layer for layer in small_net() if not isinstance(layer, nn.Dropout)))  # type: ignore[union-attr]


def recipe(folder: Path, **changes: Any) -> Config:
    """Nine steps that use every kind of state: momentum, γ-BN, power iteration, dropout, attacks, augmentation."""
    tree: dict[str, Any] = {
        "name": "run",
        "output": str(folder),
        "data": {"name": "digits", "limit_train": 96, "limit_test": 50, "augmentation": ["crop"]},
        "model": {"from": "tests.training.makers:small_net"},
        "method": {"name": "lcnn+gradreg+adv"},
        "train": {"epochs": 3, "batch_size": 32, "lr": 0.05, "checkpoint_seconds": 0},
    }
    for key, value in changes.items():
        section, _, name = key.partition("__")
        if name:
            tree[section] = {**tree[section], name: value}
        else:
            tree[section] = value
    return parse_config(tree)


def weights(run: Run) -> dict[str, Tensor]:
    """The final weights and buffers of a run."""
    return load_file(run.folder / "model.safetensors")


def same_bits(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    """Whether two states agree in every bit."""
    return first.keys() == second.keys() and all(torch.equal(value, second[key]) for key, value in first.items())


def in_child(function: Callable[[], object]) -> int:
    """Run `function` in a forked process, whose id is returned; it ends as the command line would."""
    process = os.fork()
    if process:
        return process
    code = 99
    try:
        torch.set_num_threads(1)  # OpenMP's threads do not survive a fork
        function()
        code = 0
    except SystemExit as stop:
        code = int(stop.code or 0)
    except KeyboardInterrupt:
        code = 130
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)

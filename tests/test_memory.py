"""Does a call leave anything behind? Live tensors and objects before and after many calls of each public function.

`LOWCURVE_MEMORY_CALLS=2000 pytest tests/test_memory.py` is the long version.
"""

import gc
import os
from collections import Counter
from collections.abc import Callable
from types import FunctionType

import pytest
import torch
from torch import nn

import lowcurve as lc

CALLS = int(os.environ.get("LOWCURVE_MEMORY_CALLS", "50"))
X, Y = torch.rand(2, 1, 4, 4), torch.tensor([0, 1])


class Block(nn.Module):
    """A forward that the surgery has to rewrite."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2)

    def forward(self, x):
        return torch.relu(self.norm(self.conv(x))).flatten(1)


PLAIN = nn.Sequential(Block(), nn.Linear(32, 3)).eval()
LOW = lc.convert(PLAIN, X)[0].eval()
SMOOTH = nn.Sequential(nn.Flatten(), nn.Linear(16, 4), lc.CenteredSoftplus(), nn.Linear(4, 3)).eval()
LOSSES = nn.functional.cross_entropy

EVERYTHING: dict[str, Callable[[], object]] = {
    "CenteredSoftplus": lambda: lc.CenteredSoftplus()(X),
    "LipschitzBatchNorm1d": lambda: lc.LipschitzBatchNorm1d(16)(X.flatten(1)),
    "LipschitzBatchNorm2d": lambda: lc.LipschitzBatchNorm2d(1)(X),
    "spectral_norm": lambda: lc.spectral_norm(nn.Conv2d(1, 2, 3), (4, 4))(X),
    "AveragedResidual": lambda: lc.AveragedResidual(nn.Identity())(X),
    "Normalize": lambda: lc.Normalize([0.5], [0.2])(X),
    "convert": lambda: lc.convert(PLAIN, X),
    "fold": lambda: lc.fold(LOW)(X),
    "parameter_groups": lambda: lc.parameter_groups(LOW),
    "curvature_penalty": lambda: lc.curvature_penalty(LOW).backward(),
    "gradient_penalty": lambda: _penalty(),
    "curvature": lambda: lc.curvature(LOW, X, Y, max_iterations=2),
    "curvature of the margin": lambda: lc.curvature(LOW, X, of="margin", method="power", max_iterations=3),
    "gradient_stability": lambda: lc.gradient_stability(SMOOTH, X, Y, [0.1], samples=1),
    "gradient_stability adversarial": lambda: lc.gradient_stability(
        SMOOTH, X, Y, [0.1], 1, direction="adversarial", steps=1
    ),
    "local_linearity": lambda: lc.local_linearity(SMOOTH, X, Y, [0.1], samples=1),
    "block_geometry": lambda: lc.block_geometry(SMOOTH, X, Y, blocks=["1"], max_iterations=2),
    "operator_norm": lambda: lc.operator_norm(PLAIN[0].conv, (4, 4)),
    "operator_norm_bound": lambda: lc.operator_norm_bound(PLAIN[0].conv, (4, 4)),
    "bounds": lambda: lc.bounds(SMOOTH, (1, 4, 4)),
    "certify": lambda: lc.certify(SMOOTH, X, Y),
    "certify local": lambda: lc.certify(SMOOTH, X, Y, local=True),
    "explanation_bound": lambda: lc.explanation_bound(SMOOTH, X, Y, 0.1),
    **{
        # the suite's members see the layers of LOW one by one
        f"attack {name}": lambda name=name: lc.attack(SMOOTH if name == "auto" else LOW, X, Y, name, eps=0.1, steps=1)
        for name in lc.ATTACKS
    },
}


def _penalty() -> None:
    x = X.clone().requires_grad_()
    lc.gradient_penalty(LOSSES(LOW(x), Y, reduction="none"), x).backward()
    LOW.zero_grad()


def _alive() -> Counter[str]:
    gc.collect()
    return Counter(type(thing).__name__ for thing in gc.get_objects())


@pytest.fixture(scope="module", autouse=True)
def _what_was_alive_before():
    """Keep it out of sight: to look through all that a test process has imported takes a second each time."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.parametrize("name", EVERYTHING)
def test_a_call_leaves_nothing_behind(name: str) -> None:
    call = EVERYTHING[name]
    for _ in range(3):  # caches fill, imports happen
        call()
    before = _alive()
    for _ in range(CALLS):
        call()
    growth = _alive() - before
    kept = {kind: count for kind, count in growth.items() if count >= CALLS or kind in ("Tensor", "Parameter")}
    assert not kept


def test_every_function_is_tried() -> None:
    functions = {name for name in lc.__all__ if isinstance(getattr(lc, name), FunctionType)}
    disk = {"train", "load", "save"}  # long: tests/training looks at them
    assert functions - disk - {name.split()[0] for name in EVERYTHING} == set()

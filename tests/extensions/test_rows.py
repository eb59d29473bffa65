"""An attack, a data set and a model from outside the package: a row each, then a recipe and the verbs know them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lowcurve as lc
from lowcurve.attacks import Attack
from lowcurve.data import Source, Split
from lowcurve.training.config import parse_config
from tests.extensions.verbs import evaluated_and_reported


def toward_gray(model: nn.Module, x: Tensor, y: Tensor, eps: Tensor, *, norm: float, **rest: Any) -> Tensor:
    """Go as far toward gray as the ball allows."""
    way = 0.5 - x
    length = torch.linalg.vector_norm(way.flatten(1), norm, dim=1)
    share = (eps / length.clamp_min(1e-12)).clamp(max=1)
    return x + share.view(-1, *[1] * (x.dim() - 1)) * way


def read() -> tuple[Split, Split]:
    """Return bright and dark images of a gray ramp."""
    labels = torch.arange(96) % 2
    images = labels.view(-1, 1, 1, 1) * 120 + torch.arange(36).view(1, 1, 6, 6) + torch.arange(96).view(-1, 1, 1, 1)
    split = Split(images.to(torch.uint8), labels)
    return split, split.subset(32, 0)


def tiny(*, num_classes: int, width: int, activation: Callable[[], nn.Module], **rest: Any) -> nn.Module:
    """Return a convolution, an activation and a linear layer on means."""
    last = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, num_classes))
    return nn.Sequential(nn.Conv2d(rest["in_channels"], width, 3), activation(), *last)


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(lc.ATTACKS, "gray", Attack(toward_gray, 1, False, "a step toward gray"))
    monkeypatch.setitem(lc.DATASETS, "ramps", Source("Ramps", ("dark", "bright"), (1, 6, 6), (96, 32), read=read))
    monkeypatch.setitem(lc.MODELS, "tiny", tiny)


def test_they_are_trained_measured_attacked_certified_and_reported(tmp_path: Path) -> None:
    tree = {"output": tmp_path, "data": {"name": "ramps"}, "model": {"name": "tiny", "width": 4}}
    run = lc.train(parse_config({**tree, "method": {"name": "lcnn"}, "train": {"epochs": 2, "batch_size": 16}}))
    gray = ("attack", "--attacks", "gray", "--radii", "0.1")
    page = evaluated_and_reported(run, ("measure", "--stability", "4"), gray, ("certify",))
    table = json.loads((run.folder / "attack" / "summary.json").read_text())["table"]
    assert {"clean", "gray"} <= {cell["attack"] for cell in table}
    assert "Ramps, tiny of width 4" in page and "accuracy under gray (%)" in page


def test_the_attack_stays_in_its_ball() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    x, y = torch.rand(5, 1, 2, 2), torch.arange(5) % 2
    found = lc.attack(model, x, y, "gray", eps=0.2)
    assert bool(((found.adversarial - x).flatten(1).norm(dim=1) <= 0.2 + 1e-6).all())

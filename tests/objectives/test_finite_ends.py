"""Finite differences stop at derived weights. Do layers that derive for themselves get their gradients all the same?"""

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import lowcurve as lc
from lowcurve import compat
from lowcurve.training.step import training_step

X = torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))
Y = torch.arange(6) % 3


class Checkpointed(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.body, x, use_reentrant=False)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    convolutions = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU()
    net = nn.Sequential(nn.Sequential(*convolutions), nn.Flatten(), nn.Linear(144, 8), nn.ReLU(), nn.Linear(8, 3))
    return lc.convert(net, X)[0].train()  # type: ignore[return-value]


def gradients(net: nn.Module) -> list[Tensor | None]:
    training_step(net, X, Y, "lcnn+gradreg", {"gradient": "finite", "difference_step": 1e-2})
    return [p.grad for p in net.parameters()]


@pytest.mark.parametrize("way", ["checkpointed", "saved elsewhere", "compiled", "nobody knows"])
def test_no_gradient_is_lost(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, net = gradients(network()), network()
    if way == "checkpointed":
        net[0] = Checkpointed(net[0])
    elif way == "compiled":
        net.compile(backend="eager")
    elif way == "nobody knows":
        monkeypatch.setattr(compat, "_saved_hooks", None)
    with torch.autograd.graph.save_on_cpu() if way == "saved elsewhere" else nullcontext():
        found = gradients(net)
    for mine, theirs in zip(found, expected, strict=True):
        assert (mine is None) == (theirs is None)
        assert mine is None or torch.allclose(mine, theirs, rtol=1e-3, atol=1e-5)

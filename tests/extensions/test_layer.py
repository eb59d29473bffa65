"""A layer and an activation from outside the package: certified, converted and folded by a registration each."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lowcurve as lc
from lowcurve.errors import UserError
from lowcurve.guarantees.affine import Channelwise
from lowcurve.guarantees.layers import layer_step, scalar
from lowcurve.guarantees.steps import Step
from lowcurve.layers.traits import plain
from lowcurve.surgery.rules import REPLACED, Rule
from lowcurve.training.config import parse_config
from tests.extensions.verbs import evaluated_and_reported


class Half(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.multiply(0.5)


class Kinked(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.maximum(x, 0.1 * x)


def net(layer: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), layer, nn.Tanh(), nn.Linear(8, 3)).eval()


def test_a_layer_is_certified() -> None:
    x = torch.rand(6, 3)
    with pytest.raises(UserError, match="multiply"):
        lc.certify(net(Half()), x, net(Half())(x).argmax(1))

    @layer_step.register(Half)
    def _(module: Half, shape: Any, output: Any) -> Step:
        return Channelwise(scalar(0.5), scalar(0.0))

    twin = net(nn.Identity())
    with torch.no_grad():
        twin[0].weight.mul_(0.5)
        twin[0].bias.mul_(0.5)
    y = twin(x).argmax(1)
    mine, theirs = lc.certify(net(Half()), x, y), lc.certify(twin, x, y)
    assert torch.allclose(mine.radius, theirs.radius, rtol=1e-3) and float(mine.radius.max()) > 0


def test_a_layer_is_folded() -> None:
    @plain.register
    def _(module: Half) -> nn.Module:
        linear = nn.Linear(8, 8, bias=False)
        linear.weight.data.copy_(torch.eye(8) / 2)
        return linear

    x, folded = torch.rand(4, 3), lc.fold(net(Half()))
    assert type(folded[1]) is nn.Linear and torch.allclose(folded(x), net(Half())(x), atol=1e-6)


def test_an_activation_is_converted(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = Rule(lambda module, init_beta: lc.CenteredSoftplus(init_beta), "its slope below 0")
    monkeypatch.setitem(REPLACED, Kinked, rule)
    model, report = lc.convert(net(Kinked()), torch.rand(2, 3))
    assert isinstance(model[1], lc.CenteredSoftplus) and any(change.was == "Kinked" for change in report.replaced)


def test_a_network_with_both_is_trained_evaluated_and_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @layer_step.register(Half)
    def _(module: Half, shape: Any, output: Any) -> Step:
        return Channelwise(scalar(0.5), scalar(0.0))

    def halved(*, num_classes: int, width: int, **rest: Any) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, width), Half(), Kinked(), nn.Linear(width, num_classes))

    monkeypatch.setitem(REPLACED, Kinked, Rule(lambda module, init_beta: lc.CenteredSoftplus(init_beta), "its slope"))
    monkeypatch.setitem(lc.MODELS, "halved", halved)
    tree: dict[str, Any] = {"output": tmp_path, "data": {"name": "digits", "limit_train": 96, "limit_test": 32}}
    tree |= {"model": {"name": "halved", "width": 8}, "method": {"name": "lcnn"}}
    tree["train"] = {"epochs": 1, "batch_size": 32}
    run = lc.train(parse_config(tree))
    assert run.metrics[0]["beta"].keys() == {"3"}
    assert "halved of width 8" in evaluated_and_reported(run)

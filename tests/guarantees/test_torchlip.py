"""Smooth 1-Lipschitz networks of deel-torchlip: certified after its own export, or layer by layer by registration."""

import json

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import lowcurve as lc
from lowcurve.cli import app
from lowcurve.data import load_dataset
from lowcurve.errors import UserError
from lowcurve.guarantees.affine import Channelwise, Linear
from lowcurve.guarantees.layers import layer_step, scalar
from lowcurve.guarantees.operator_norm import effective_weight
from lowcurve.linalg.linear_map import LinearMap

torchlip = pytest.importorskip("deel.torchlip", reason="deel-torchlip is not installed (pip install --no-deps)")


def smooth_net(beta=2.0):
    """Spectral convolutions and linear layers of theirs, centered softplus of ours."""
    torch.manual_seed(0)
    return torchlip.Sequential(
        torchlip.SpectralConv2d(1, 4, 3, padding=1),
        lc.CenteredSoftplus(beta),
        torchlip.InvertibleDownSampling(2),
        torchlip.SpectralConv2d(16, 8, 3, padding=1),
        lc.CenteredSoftplus(beta),
        nn.Flatten(),
        torchlip.SpectralLinear(32, 12),
        lc.CenteredSoftplus(beta),
        torchlip.FrobeniusLinear(12, 3),
    ).eval()


def unbroken(model, x, y):
    """Certify, and let attacks look inside every ball."""
    found = lc.certify(model, x, y, local=True)
    for name in ("apgd-t", "pgd"):
        attacked = lc.attack(model, x, y, name, eps=0.9999 * found.radius.float(), steps=20)
        assert not bool(attacked.success.any())
    return found


def test_an_exported_network_is_certified_to_second_order():
    model = smooth_net()
    plain = model.vanilla_export().eval()
    x = torch.rand(8, 1, 4, 4)
    assert torch.allclose(plain(x), model(x), atol=1e-6)
    found = unbroken(plain, x, plain(x).argmax(1))
    assert lc.bounds(plain, (1, 4, 4)).lipschitz.value <= 3**0.5 * 1.01  # three neurons of norm 1 at the end
    assert float(found.radius.min()) > 0 and float((found.radius / found.lipschitz_radius).max()) > 1.1


def test_a_trained_network_of_theirs_is_certified_by_the_command(tmp_path, monkeypatch):
    """From their layers and their loss to radii in a file: trained on digits, exported, certified."""
    digits = load_dataset("digits")
    (x, y), (test_x, test_y) = (split.batch(slice(None)) for split in (digits.train, digits.test))
    torch.manual_seed(0)
    model = torchlip.Sequential(
        nn.Flatten(), torchlip.SpectralLinear(64, 32), lc.CenteredSoftplus(2.0), torchlip.FrobeniusLinear(32, 10)
    )
    optimizer, loss = torch.optim.Adam(model.parameters(), lr=0.02), torchlip.TauCrossEntropyLoss(8.0)
    for _ in range(60):
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
    plain = model.eval().vanilla_export().eval()
    monkeypatch.setattr("tests.guarantees.test_torchlip.exported", lambda: plain, raising=False)
    arguments = ["certify", "tests.guarantees.test_torchlip:exported", "--data", "digits", "--samples", "60"]
    said = CliRunner().invoke(app, [*arguments, "--output", str(tmp_path)])
    assert said.exit_code == 0, said.output
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert float((plain(test_x).argmax(1) == test_y).float().mean()) > 0.85
    assert summary["certified_accuracy"]["0.1"] > 0.7 and not summary["vacuous"]
    assert summary["median"]["lipschitz_radius"] < summary["median"]["radius"] < summary["median"]["attack_distance"]


def test_their_layers_are_certified_where_they_are_registered(monkeypatch):
    """A layer that is a torch.nn layer with a parametrized weight needs one line; one with a factor says so."""
    model = nn.Sequential(
        torchlip.SpectralLinear(4, 8),
        lc.CenteredSoftplus(1.0),
        torchlip.ScaleBiasLayer(0.5, 8),
        torchlip.SpectralLinear(8, 3),
    )
    model[2].bias.data.zero_()
    model, x = model.eval(), torch.rand(6, 4)
    y = model(x).argmax(1)
    with pytest.raises(UserError, match="tensor of its own"):
        lc.certify(model, x, y)

    def linear(module, shape, output):
        return Linear(LinearMap.of(module, shape[1:]), effective_weight(module), module.bias.detach().double())

    before = dict(layer_step.registry)
    layer_step.register(torchlip.SpectralLinear, linear)
    layer_step.register(torchlip.ScaleBiasLayer, lambda module, *_: Channelwise(scalar(module.scalar), scalar(0.0)))
    assert float(unbroken(model, x, y).radius.min()) > 0 and len(layer_step.registry) == len(before) + 2


def test_what_rests_on_their_word_alone_is_refused():
    """GroupSort has a kink and is not known here: nothing is taken on trust from a class that says it is Lipschitz."""
    model = nn.Sequential(nn.Linear(4, 8), torchlip.GroupSort2(), nn.Linear(8, 3)).eval()
    with pytest.raises(UserError, match="cannot be bounded"):
        lc.certify(model, torch.rand(2, 4), torch.tensor([0, 1]))

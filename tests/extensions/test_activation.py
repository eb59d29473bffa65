"""An activation with a learned curvature from outside the package: a class and its registrations, then everything."""

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lowcurve as lc
from lowcurve.layers.traits import Constants, Learned, constants, learned, plain
from lowcurve.methods import ACTIVATIONS, build
from lowcurve.training.config import parse_config
from tests.extensions.verbs import evaluated_and_reported


class Shifted(nn.Module):
    """s(x) = softplus(x; β) − softplus(0; β) + x/10, β = e^r per layer: slope in (0.1, 1.1), curvature β/4."""

    def __init__(self, init_beta: float = 4.0) -> None:
        super().__init__()
        self.r = nn.Parameter(torch.tensor(math.log(init_beta)))

    def forward(self, x: Tensor) -> Tensor:
        beta = self.r.exp()
        return (F.softplus(beta * x) - math.log(2)) / beta + x / 10


@learned.register
def _(module: Shifted) -> tuple[Learned, ...]:
    return (Learned("beta", module.r),)


@constants.register
def _(module: Shifted) -> Constants:
    return Constants(1.1, float(module.r.detach().exp()) / 4, convex=True)


@pytest.fixture(autouse=True)
def method(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ACTIVATIONS, "shifted", Shifted)
    made = lc.Method("Shifted", activation="shifted", spectral=True, terms=("curvature",))
    monkeypatch.setitem(lc.METHODS, "shifted", made)


def net() -> nn.Module:
    torch.manual_seed(0)
    return build("shifted", "mlp", (1, 8, 8), 10, width=8)


def test_it_is_trained_penalized_logged_evaluated_and_reported(tmp_path: Path) -> None:
    tree = {
        "output": tmp_path,
        "data": {"name": "digits", "limit_train": 96, "limit_test": 32},
        "model": {"name": "mlp", "width": 8},
        "method": {"name": "shifted+gradreg", "lambda_beta": 0.1, "gradient": "finite"},
        "train": {"epochs": 1, "batch_size": 32},
    }
    run = lc.train(parse_config(tree))
    betas = run.metrics[0]["beta"]
    assert betas and all(0 < beta < 4.0 for beta in betas.values())  # the penalty has pulled
    total = sum(float(module.r.detach().exp()) for module in lc.load(run).modules() if isinstance(module, Shifted))
    assert sum(betas.values()) == pytest.approx(total)
    assert "mlp-shifted+gradreg" in evaluated_and_reported(run)


def test_it_is_penalized_and_does_not_decay() -> None:
    model = net()
    sites = [module for module in model.modules() if isinstance(module, Shifted)]
    assert float(lc.curvature_penalty(model, beta=0.5).detach()) == pytest.approx(0.5 * 4.0 * len(sites))
    _, kept = lc.parameter_groups(model)
    assert {id(site.r) for site in sites} <= {id(parameter) for parameter in kept["params"]}


def test_surgery_leaves_it_and_converts_the_rest() -> None:
    model = nn.Sequential(nn.Linear(6, 8), Shifted(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    low, report = lc.convert(model, torch.zeros(2, 6))
    assert [type(layer) for layer in (low[1], low[3])] == [Shifted, lc.CenteredSoftplus]
    assert report.summary() == "2 Linear -> spectral norm, 1 ReLU -> CenteredSoftplus; 1 left"


def test_bounds_hold_and_certificates_are_sound() -> None:
    model, x, y = net().double().eval(), torch.rand(6, 1, 8, 8).double(), torch.arange(6)
    model.requires_grad_(False)
    bounds = lc.bounds(model, (1, 8, 8))
    betas = [layer.beta for layer in bounds.layers if layer.kind == "Activation"]
    assert betas and betas == pytest.approx([4.0] * len(betas))
    jacobian = torch.func.jacrev(lambda z: model(z[None])[0])(x[0]).flatten(1)
    margins = torch.stack([(jacobian[a] - jacobian[b]).norm() for a in range(10) for b in range(10)])
    assert float(margins.max()) <= float(bounds.margin_lipschitz.max())
    hessian = torch.func.hessian(lambda z: model(z[None])[0, 0] - model(z[None])[0, 1])(x[0]).reshape(64, 64)
    assert 0 < float(torch.linalg.matrix_norm(hessian, 2)) <= float(bounds.margin_hessian[0, 1])
    labels = model(x).argmax(1)
    certificate = lc.certify(model, x, labels)
    assert bool((certificate.radius > 0).all())
    attacked = lc.attack(model, x, labels, "pgd", eps=float(certificate.radius.min()) * 0.99)
    assert attacked.accuracy == 1.0
    assert lc.curvature(model, x, y).curvature.shape == (6,)


def test_a_subclass_inherits_the_penalty_but_no_constants() -> None:
    class Steeper(Shifted):
        def forward(self, x: Tensor) -> Tensor:
            return 3 * super().forward(x)

    assert learned(Steeper()) and constants(Steeper()) is None


def test_folding_keeps_it_or_takes_its_plain_form() -> None:
    model, x = net().eval(), torch.rand(6, 1, 8, 8)
    kept = lc.fold(model)
    assert any(isinstance(module, Shifted) for module in kept.modules())
    assert torch.allclose(kept(x), model(x), atol=1e-6)

    class Known(Shifted):
        """One that has a plain form."""

    @plain.register
    def _(module: Known) -> nn.Module:
        return nn.Sequential(nn.Softplus(beta=float(module.r.detach().exp())))

    folded = lc.fold(nn.Sequential(nn.Linear(4, 3), Known()))
    assert not any(isinstance(module, Shifted) for module in folded.modules())

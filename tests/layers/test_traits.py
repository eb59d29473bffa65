"""What layers say of themselves: constants against derivatives on a fine grid, learned parameters by name."""

import math

import pytest
import torch
from torch import nn

from lowcurve.layers.batchnorm import LipschitzBatchNorm1d
from lowcurve.layers.gated import LearnedGELU, LearnedSiLU
from lowcurve.layers.rectifiers import LeakyCenteredSoftplus, SmoothClip
from lowcurve.layers.softplus import CenteredSoftplus
from lowcurve.layers.traits import Learned, constants, constants_between, learned, learned_logs, learned_parameters

MODULES = [
    CenteredSoftplus(0.3), CenteredSoftplus(7.0), LeakyCenteredSoftplus(0.2, 3.0), SmoothClip(-1.0, 2.0, 4.0),
    nn.Softplus(beta=2.0), nn.ReLU(), nn.LeakyReLU(0.1), nn.ELU(), nn.ELU(0.5), nn.Tanh(), nn.Sigmoid(), nn.SiLU(),
    nn.GELU(), nn.GELU(approximate="tanh"), LearnedGELU(2.0), LearnedGELU(0.5, "tanh"), LearnedSiLU(3.0),
]  # fmt: skip


for activation in MODULES:
    activation.double()


def derivatives(module, x):
    x = x.clone().requires_grad_()
    first = torch.autograd.grad(module(x).sum(), x, create_graph=True)[0]
    second = torch.autograd.grad(first.sum(), x)[0] if first.requires_grad else torch.zeros_like(x)
    return first.detach(), second


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_constants_bound_the_derivatives_and_are_attained(module):
    found = constants(module)
    x = torch.linspace(-20, 20, 400_001, dtype=torch.float64)[1::2]  # misses 0, where kinks have no derivative
    first, second = derivatives(module, x)
    assert float(first.abs().max()) <= found.lipschitz * (1 + 1e-9)
    assert float(first.abs().max()) >= 0.98 * found.lipschitz
    assert float(second.abs().max()) <= found.curvature * (1 + 1e-9)
    if math.isfinite(found.curvature):
        assert float(second.abs().max()) >= 0.98 * found.curvature
    steep = first.abs() > 1e-6
    assert float((second[steep] / first[steep]).abs().max()) <= found.relative * (1 + 1e-6)
    assert bool((second >= -1e-9).all()) == found.convex or math.isinf(found.curvature)
    assert bool((first >= 0).all()) == found.increasing


@pytest.mark.parametrize("module", [m for m in MODULES if math.isfinite(constants(m).curvature)], ids=str)
def test_local_constants_hold_on_their_interval_and_are_no_worse(module):
    found = constants(module)
    generator = torch.Generator().manual_seed(0)
    low = 4 * torch.randn(50, generator=generator, dtype=torch.float64)
    high = low + torch.rand(50, generator=generator, dtype=torch.float64)
    slope, bend = constants_between(module, low, high)
    assert bool((slope <= found.lipschitz).all() and (bend <= found.curvature).all())
    for t in torch.linspace(0, 1, 21, dtype=torch.float64):
        first, second = derivatives(module, low + t * (high - low))
        assert bool((first.abs() <= slope + 1e-9).all() and (second.abs() <= bend + 1e-9).all())


def test_every_activation_of_the_table_is_tested():
    known = {kind for kind in constants.registry if kind.__module__.startswith(("torch.", "lowcurve."))}
    assert {type(m) for m in MODULES} == known


def test_a_subclass_is_not_taken_for_its_parent():
    class Doubled(nn.ReLU):
        def forward(self, x):
            return 2 * super().forward(x)

    assert constants(Doubled()) is None


def test_parameters_are_found_by_name():
    model = nn.Sequential(nn.Linear(2, 2), LipschitzBatchNorm1d(2, init_gamma=4.0), LeakyCenteredSoftplus(0.1, 3.0))
    assert {k: round(float(v.detach().exp()), 5) for k, v in learned_logs(model, "beta").items()} == {"2.softplus": 3.0}
    assert {k: round(float(v.detach().exp()), 5) for k, v in learned_logs(model, "gamma").items()} == {"1": 4.0}
    norm, activation = model[1], model[2]
    assert learned_parameters(model) == {norm.log_gamma, activation.softplus.log_beta}


def test_a_layer_may_learn_several_numbers_from_parameters_of_any_shape():
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.raw, self.log_cap = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(()))

    @learned.register
    def _(module: Pair):
        return Learned("beta", module.raw * 2, (module.raw,)), Learned("beta", module.log_cap)

    model = nn.Sequential(Pair())
    assert {name: log.shape for name, log in learned_logs(model, "beta").items()} == {"0.beta0": (3,), "0.beta1": ()}
    assert learned_parameters(model) == set(model.parameters())


@pytest.mark.parametrize(
    "module",
    [
        nn.ELU(5.0), nn.ELU(-2.0), nn.ELU(0.0), nn.LeakyReLU(2.5), nn.LeakyReLU(-1.5), nn.LeakyReLU(1.0),
        SmoothClip(2.0, -1.0, 9.0), SmoothClip(1.0, 1.0, 2.0), LeakyCenteredSoftplus(0.0, 40.0),
        LeakyCenteredSoftplus(1.0, 2.0), nn.Softplus(30.0, 40), nn.Softplus(0.05), CenteredSoftplus(1e-3),
        CenteredSoftplus(1e3),
    ],
    ids=str,
)  # fmt: skip
def test_constants_hold_for_odd_parameters(module):
    module.double()
    found = constants(module)
    wide = torch.linspace(-60, 60, 400_001, dtype=torch.float64)[1::2]
    first, second = derivatives(module, torch.cat([wide, wide / 1e3]))
    assert float(first.abs().max()) <= found.lipschitz * (1 + 1e-9)
    assert float(second.abs().max()) <= found.curvature * (1 + 1e-9)
    assert not found.convex or bool((second >= -1e-9).all())

"""The rounding bound against exact arithmetic: at the sample, in its ball, in networks built to round badly."""

import os
from fractions import Fraction

import pytest
import torch
from torch import nn

import lowcurve as lc
from lowcurve.errors import UserError
from lowcurve.guarantees.arithmetic import FLOAT32, FLOAT64, arithmetic
from lowcurve.guarantees.expansion import expand
from lowcurve.guarantees.graph import trace_network
from lowcurve.guarantees.rounding import rounding, slope_errors
from lowcurve.layers.batchnorm import LipschitzBatchNorm2d
from lowcurve.layers.residual import Normalize
from lowcurve.layers.traits import ULPS, constants
from tests.guarantees.oracles import softplus_net
from tests.layers.test_traits import MODULES


class Shifted(nn.Module):
    """Adds a number and takes it away again: exact on paper, a loss of all digits below 2⁻¹⁰ in float32."""

    def __init__(self, by: float, inner: nn.Module) -> None:
        super().__init__()
        self.by, self.inner = by, inner

    def forward(self, x):
        return self.inner((x + self.by) + (-self.by))


def rough_nets() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    """Networks in which float32 errs much, each in its own way."""
    torch.manual_seed(0)
    plain = lambda: nn.Sequential(nn.Linear(2, 6), lc.CenteredSoftplus(2.0), nn.Linear(6, 3))  # noqa: E731
    norm = nn.BatchNorm2d(3)
    norm.running_mean.fill_(1e4)
    norm.running_var.fill_(1e-3)
    bounded = LipschitzBatchNorm2d(3, affine=True)
    bounded.norm.running_mean.normal_(0, 100)
    scaled, cancelling = plain(), nn.Sequential(nn.Linear(2, 40), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 3))
    with torch.no_grad():
        scaled[0].weight.mul_(1e20), scaled[2].weight.mul_(1e-20)
        cancelling[1].weight.mul_(1e4)
        cancelling[1].weight[:, 20:] = -cancelling[1].weight[:, :20]
        cancelling[0].weight[20:] = cancelling[0].weight[:20]
    conv = nn.Conv2d(2, 3, 3, padding=1)
    blocks = [lc.LipschitzResidual(2, 30) for _ in range(12)]
    for block in blocks:
        block.weight.data.normal_(0, 100)
        block.bias.data.normal_(0, 1e4)
    tail = lambda: (nn.Softplus(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(12, 3))  # noqa: E731
    return {
        "shifted": (Shifted(16384.0, plain()), (2,)),
        "very shifted": (Shifted(1e7, plain()), (2,)),
        "scaled": (scaled, (2,)),
        "cancelling": (cancelling, (2,)),
        "batch norm": (nn.Sequential(conv, norm, *tail()), (2, 4, 4)),
        "gamma batch norm": (nn.Sequential(Normalize([5.0, 1.0], [1e-3, 2.0]), conv, bounded, *tail()), (2, 4, 4)),
        "lipschitz": (nn.Sequential(*blocks, nn.Linear(2, 3)), (2,)),
        "wide": (nn.Sequential(nn.Linear(5000, 3), nn.Sigmoid(), nn.Linear(3, 3)), (5000,)),
        "pooled": (
            nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(3, 3)),
            (2, 4, 4),
        ),
    }


def within(model, shape, x, radius):
    """Return errors of float32 at random points of the balls beside what is allowed there."""
    net = trace_network(model, shape)
    values = net.values(x)
    allowed = rounding(net, values, net.reaches(), torch.full((len(x),), radius).double(), FLOAT32)[-1].parts
    worst = torch.zeros_like(allowed)
    for seed in range(6):
        direction = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed))
        moved = x + 0.999 * radius * direction / direction.flatten(1).norm(dim=1).view(-1, *(1,) * (x.dim() - 1))
        with torch.no_grad():
            worst = torch.maximum(worst, (model(moved).double() - net.values(moved)[-1]).abs())
    return worst, allowed


@pytest.mark.parametrize("kind", rough_nets())
@pytest.mark.parametrize("radius", [0.0, 1.0])
def test_float32_logits_are_within_the_bound_everywhere_in_the_ball(kind, radius):
    model, shape = rough_nets()[kind]
    worst, allowed = within(model.eval(), shape, torch.randn(20, *shape), radius)
    assert bool((worst <= allowed).all())
    assert bool((allowed.isfinite() & (allowed > 0)).all())


@pytest.mark.parametrize("kind", ["mlp", "conv", "residual", "branches"])
def test_the_bound_is_of_use_for_ordinary_networks(kind):
    model, shape = softplus_net(kind, 2.0, seed=0)
    worst, allowed = within(model, shape, torch.rand(20, *shape), 0.1)
    assert bool((worst <= allowed).all()) and float(allowed.max()) < 1e-4


def test_the_bound_holds_in_exact_arithmetic():
    """An affine network by fractions: nothing of the reference is rounded."""
    torch.manual_seed(1)
    layers = [nn.Linear(3, 4), nn.Linear(4, 3)]
    layers[1].weight.data.mul_(3e3)
    model, x = nn.Sequential(*layers), torch.randn(5, 3) * 1e3
    net = trace_network(model, (3,))
    allowed = rounding(net, net.values(x), net.reaches(), torch.zeros(5).double(), FLOAT32)[-1].parts
    with torch.no_grad():
        found = model(x).tolist()
    for row, result, bounds in zip(x.tolist(), found, allowed.tolist(), strict=True):
        exact = [Fraction(value) for value in row]
        for layer in layers:
            weight, bias = layer.weight.tolist(), layer.bias.tolist()
            exact = [
                sum((Fraction(w) * v for w, v in zip(ws, exact, strict=True)), Fraction(b))
                for ws, b in zip(weight, bias, strict=True)
            ]
        for value, truth, bound in zip(result, exact, bounds, strict=True):
            assert abs(Fraction(value) - truth) <= Fraction(bound)


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_activations_are_computed_as_well_as_the_table_says(module):
    """All sizes of float32, also below the smallest normal number, against float64."""
    known = constants(module)
    exponents = torch.arange(-140, 100, dtype=torch.float64)
    x = (2**exponents).unsqueeze(1) * (1 + torch.rand(64, generator=torch.Generator().manual_seed(0)).double())
    x = torch.cat(
        [x.flatten(), -x.flatten(), torch.linspace(-30, 30, 20_001).double(), torch.zeros(1).double()]
    ).float()
    with torch.no_grad():
        double, single = module.double()(x.double()), module.float()(x).double()
    module.double()
    unit, tiny = 2.0**-24, torch.finfo(torch.float32).tiny
    allowed = (
        ULPS * unit * known.lipschitz * (x.double().abs() + known.width) + known.jump + 8 * tiny * (1 + known.width)
    )
    assert bool(((single - double).abs() <= allowed / 2).all())  # twice what was seen here, for other machines


def test_an_overflow_leaves_no_certificate():
    model = nn.Sequential(nn.Linear(2, 3, bias=False), nn.ReLU(), nn.Linear(3, 2, bias=False))
    with torch.no_grad():
        model[0].weight.fill_(1e30), model[2].weight.copy_(torch.tensor([[1e30] * 3, [-1e30] * 3]))
    found = lc.certify(model, torch.ones(1, 2), torch.tensor([0]))
    assert float(found.radius) == 0


def test_flushed_denormals_are_covered():
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    with torch.no_grad():
        model[0].weight.mul_(1e-38), model[0].bias.mul_(1e-38)
    x = torch.randn(8, 2)
    net = trace_network(model, (2,))
    allowed = rounding(net, net.values(x), net.reaches(), torch.zeros(8).double(), FLOAT32)[-1].parts
    assert torch.set_flush_denormal(True)
    try:
        with torch.no_grad():
            logits = model(x).double()
    finally:
        torch.set_flush_denormal(False)
    assert bool(((logits - net.values(x)[-1]).abs() <= allowed).all())


def test_gradients_that_cancel_are_known_to_be_doubtful():
    """W₂W₁ of size 1 from weights of size 1e8: float64 gradients are off, the bound says by how much at most."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(2, 50, bias=False), nn.Linear(50, 50, bias=False), nn.Linear(50, 2, bias=False)
    ).double()
    with torch.no_grad():
        model[1].weight.mul_(1e9)
        model[1].weight[:, 25:] = -model[1].weight[:, :25] + 1e-3 * torch.randn(50, 25)
        model[0].weight[25:] = model[0].weight[:25]
    net = trace_network(model, (2,))
    x, y = torch.randn(1, 2).double(), torch.tensor([0])
    at = expand(net, x, y)
    rows = [[Fraction(v) for v in row] for row in (model[2].weight[0] - model[2].weight[1])[None].tolist()]
    for layer in (model[1], model[0]):
        weight = [[Fraction(v) for v in row] for row in layer.weight.tolist()]
        rows = [
            [sum(a * w[j] for a, w in zip(row, weight, strict=True)) for j in range(len(weight[0]))] for row in rows
        ]
    truth = float(sum(v * v for v in rows[0])) ** 0.5
    assert truth <= float(at.gradient_norms[0, 1])
    doubt = slope_errors(net, rounding(net, at.values, net.reaches(), x.new_zeros(1), FLOAT64))[0]
    assert float(doubt) > 1e-9


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m, x: (m.half(), x.half()), "float32 or in float64"),
        (lambda m, x: (m.double(), x), "float32 or in float64"),
        (lambda m, x: (m, x.long()), "float32 or in float64"),
        (lambda m, x: (m.to("meta"), x), "on the processor"),
    ],
)
def test_other_arithmetic_is_refused(change, message):
    model, x = change(nn.Linear(2, 2), torch.ones(1, 2))
    with pytest.raises(UserError):  # whoever looks first
        lc.certify(model, x, torch.tensor([0]))
    with pytest.raises(UserError, match=message):
        arithmetic(model, x)


def test_reduced_precision_is_refused(monkeypatch):
    model, x = nn.Linear(2, 2), torch.ones(1, 2)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(UserError, match="autocast"):
        arithmetic(model, x)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        with pytest.raises(UserError, match="full precision"):
            arithmetic(model, x)
    finally:
        torch.set_float32_matmul_precision(before)
    monkeypatch.setitem(os.environ, "ONEDNN_DEFAULT_FPMATH_MODE", "BF16")
    with pytest.raises(UserError, match="full precision"):
        arithmetic(model, x)
    monkeypatch.delitem(os.environ, "ONEDNN_DEFAULT_FPMATH_MODE")
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    assert arithmetic(model, x) is FLOAT32
    with pytest.raises(UserError, match="sums of products"):
        arithmetic(nn.Conv2d(1, 1, 3), x)

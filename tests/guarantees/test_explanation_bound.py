"""Bounds on explanations between dense gradients, searches and closed forms: nothing crosses them."""

import copy
import math

import pytest
import torch
from torch import nn

import lowcurve as lc
from lowcurve.attacks.manipulation import manipulate_explanation
from lowcurve.errors import UserError
from lowcurve.guarantees.arithmetic import FLOAT32
from lowcurve.guarantees.expansion import expand_outputs
from lowcurve.guarantees.explained_loss import _shift
from lowcurve.guarantees.gradient_rounding import Executed, gradient_errors
from lowcurve.guarantees.graph import trace_network
from lowcurve.guarantees.rounding import Error, jacobian_error, rounding
from lowcurve.guarantees.steps import Ball
from lowcurve.layers.rectifiers import SmoothClip
from lowcurve.layers.traits import constants
from lowcurve.objectives.cross_entropy import cross_entropy_per_sample
from tests.guarantees.oracles import softplus_net
from tests.guarantees.test_false_certificates import Odd
from tests.layers.test_traits import MODULES

FUNCTIONS = ("margin", "loss", 1)


def value(logits, y, other, of):
    """f, written again: the margin's other class is given."""
    rows = torch.arange(len(logits))
    if of == "loss":
        return cross_entropy_per_sample(logits, y)
    return logits[rows, y] - logits[rows, other] if of == "margin" else logits[:, of]


def gradient(model, x, y, other, of):
    leaf = x.clone().requires_grad_()
    return torch.autograd.grad(value(model(leaf), y, other, of).sum(), leaf)[0].flatten(1)


def disc(x, radius, angles=48, lengths=(0.3, 0.7, 1.0)):
    """Points of the plane within the radius of each x, (N, P, 2), those that rounding carries out of it drawn in."""
    turn = torch.arange(angles).double() * (2 * math.pi / angles)
    steps = torch.cat([length * torch.stack([turn.cos(), turn.sin()], 1) for length in lengths])
    return (x.double().unsqueeze(1) + radius * steps).to(x)


def crossings(model, x, y, radius, of, points):
    """Count the points (N, P, ...) of the balls at which a bound does not hold, in the model's own arithmetic."""
    found = lc.explanation_bound(model, x, y, radius, of=of)
    other, many = found.details["other_class"], points.shape[1]
    before = gradient(model, x, y, other, of).double().repeat_interleave(many, 0)
    y, other = y.repeat_interleave(many), other.repeat_interleave(many)
    after = gradient(model, points.flatten(0, 1), y, other, of).double()
    inside = (points.double() - x.double().unsqueeze(1)).flatten(2).norm(dim=2) <= radius
    change, size = (after - before).norm(dim=1), before.norm(dim=1)
    units = [vectors / vectors.norm(dim=1, keepdim=True) for vectors in (before, after)]
    cosine = (units[0] * units[1]).sum(1).nan_to_num(1.0)
    bounds = [bound.repeat_interleave(many) for bound in (found.change, found.relative, found.cosine)]
    broken = (change > bounds[0]) | (change > bounds[1] * size) | (cosine < bounds[2] - 1e-14) & (bounds[2] > -1)
    return int((broken & inside.flatten()).sum()), found


@pytest.mark.parametrize("of", FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nothing_on_a_grid_of_the_plane_crosses(of, dtype, seeds=range(8)):
    """Random networks with everything odd in them, 5 samples each, 144 points a disc, in their own arithmetic."""
    bounded = 0
    for seed in seeds:
        model = Odd(seed).eval().to(dtype)
        x = 2 * torch.randn(5, 2, generator=torch.Generator().manual_seed(seed)).to(dtype)
        y = model(x).argmax(1) if seed % 2 else torch.arange(5) % 3
        for radius in (1e-6, 0.01, 0.3, 3.0)[seed % 2 :: 2]:
            try:
                broken, found = crossings(model, x, y, radius, of, disc(x, radius))
            except UserError:
                break
            assert not broken, (seed, radius)
            bounded += int(found.change.isfinite().sum())
    assert bounded >= 10


@pytest.mark.parametrize("of", FUNCTIONS)
@pytest.mark.parametrize("kind", ["mlp", "conv", "residual", "branches", "lipschitz images"])
def test_lower_and_upper_side_enclose_the_truth(kind, of):
    """The strongest manipulation found is below the bound, and a good part of it where the network is smooth."""
    model, shape = softplus_net(kind, beta=1.5, seed=3)
    x, y = torch.rand(6, *shape), torch.randint(0, 3, (6,))
    for radius in (0.01, 0.5):
        bound = lc.explanation_bound(model, x, y, radius, of=of)
        found = manipulate_explanation(model, x, y, radius, of=of, restarts=2, steps=5)
        assert bool((found.change <= bound.change).all() and (found.relative <= bound.relative).all())
        assert bool((found.cosine >= bound.cosine).all())
        assert float((found.change / bound.change).median()) > 0.02


def test_one_neuron_is_known_exactly():
    """f = 2 s(x) has f'(x + δ) − f'(x) = 2 (σ(β(x + δ)) − σ(βx)): the bound is r times the largest f'' of the ball."""
    model = nn.Sequential(nn.Linear(1, 1, bias=False), lc.CenteredSoftplus(3.0), nn.Linear(1, 2, bias=False)).double()
    model[0].weight.data.fill_(1.0), model[2].weight.data.copy_(torch.tensor([[1.0], [-1.0]]))
    x, y = torch.tensor([[0.0], [0.7]]).double(), torch.tensor([0, 0])
    slope = 2 * torch.sigmoid(3 * x)[:, 0]
    for radius in (1e-4, 0.1, 0.5):
        bound = lc.explanation_bound(model, x, y, radius)
        nearest = (x[:, 0] - radius).clamp_min(0)
        bend = 2 * 3 * torch.sigmoid(3 * nearest) * torch.sigmoid(-3 * nearest)
        torch.testing.assert_close(bound.change, radius * bend, rtol=1e-4, atol=1e-9)
        torch.testing.assert_close(bound.relative, radius * bend / slope, rtol=1e-4, atol=1e-9)


def test_a_linear_model_does_not_turn_and_a_large_ball_is_capped():
    linear = nn.Linear(3, 4).double()
    found = lc.explanation_bound(linear, torch.rand(5, 3).double(), None, 10.0)
    assert float(found.relative.max()) < 1e-9 and float(found.cosine.min()) > 1 - 1e-9
    model, shape = softplus_net("mlp", beta=500.0, seed=0)
    x, y = torch.rand(4, *shape), torch.randint(0, 3, (4,))
    limit = lc.bounds(model, shape).margin_lipschitz.max()
    far = lc.explanation_bound(model.double(), x.double(), y, 100.0)
    assert bool((far.change <= 2.001 * limit).all()) and bool((far.cosine == -1).all()) and far.vacuous


def test_the_cosine_follows_from_the_change():
    """cos ≥ √(1 − c²), attained by a change orthogonal to g + e; nothing is known from c = 1 on."""
    model, shape = softplus_net("mlp", beta=2.0, seed=1)
    x = torch.rand(64, *shape)
    found = lc.explanation_bound(model, x, None, torch.linspace(0, 2, 64))
    known = found.relative < 1
    assert bool(known.any()) and bool((~known).any())
    torch.testing.assert_close(found.cosine[known], (1 - found.relative[known].square()).sqrt())
    assert bool((found.cosine[~known] == -1).all())


@pytest.mark.parametrize("kinked", [nn.ReLU(), nn.LeakyReLU(0.1), nn.ELU(0.5)])
def test_a_kink_has_no_bound(kinked):
    found = lc.explanation_bound(nn.Sequential(nn.Linear(2, 4), kinked, nn.Linear(4, 3)), torch.rand(3, 2), None, 0.1)
    assert bool(found.change.isinf().all() and found.relative.isinf().all() and (found.cosine == -1).all())


def test_what_is_not_understood_is_refused():
    model, x = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 3)), torch.rand(2, 4)
    with pytest.raises(UserError, match="LayerNorm"):
        lc.explanation_bound(model, x, None, 0.1)
    good = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))
    for of in ("curvature", lambda z, y: z[:, 0], True, 1.0):
        with pytest.raises(UserError, match="function to explain"):
            lc.explanation_bound(good, x, None, 0.1, of=of)
    for radius in (-0.1, math.inf, math.nan, 1e7, [0.1] * 3):
        with pytest.raises(UserError, match="radius"):
            lc.explanation_bound(good, x, None, radius)
    with pytest.raises(UserError, match="logit"):
        lc.explanation_bound(good, x, None, 0.1, of=3)


def test_shift_of_probability_is_the_largest_possible():
    """T over a grid of pairs of distributions whose log-odds differ by at most D."""
    torch.manual_seed(0)
    logits = 3 * torch.randn(4000, 3).double()
    for limit in (0.01, 1.0, 6.0):
        move = limit * torch.rand(4000, 3).double()
        before, after = logits.softmax(1), (logits + move).softmax(1)
        shift = (before - after).abs().sum(1) / 2
        top = before.max(1).values
        assert bool((shift <= _shift(((1 - top) / top).log(), torch.full_like(shift, limit)) * (1 + 1e-9)).all())


@pytest.mark.parametrize("module", [*MODULES, SmoothClip(-0.1, 0.7, 300.0)], ids=lambda module: type(module).__name__)
def test_slopes_in_float32_are_as_good_as_the_bound_says(module):
    """Both ways in which the package differentiates, at all sizes of numbers, against float64."""
    from lowcurve.guarantees.layers import activation_step
    from lowcurve.kernels.replace import fast_double_backward

    known = constants(module)
    if known is None or math.isinf(known.curvature):
        pytest.skip("no curvature bound")
    sizes = 10 ** torch.linspace(-30, 4, 20000)
    x = torch.cat([sizes, -sizes, torch.linspace(-30, 30, 20001)])
    exact = x.double().requires_grad_()
    (truth,) = torch.autograd.grad(activation_step(module).evaluate(exact).sum(), exact)
    allowed = jacobian_error(activation_step(module), Error(torch.zeros(1), torch.zeros(1, 1)), FLOAT32)
    for twice in (False, True):
        leaf = x.clone().requires_grad_()
        with fast_double_backward(twice=twice):
            (slope,) = torch.autograd.grad(copy.deepcopy(module).float()(leaf.clone()).sum(), leaf, create_graph=twice)
        assert float((slope.detach().double() - truth).abs().max()) <= float(allowed)


@pytest.mark.parametrize("kind", ["mlp", "conv", "residual", "branches", "lipschitz images"])
@pytest.mark.parametrize("beta", [0.1, 20.0, 2000.0])
def test_gradients_in_float32_are_as_good_as_the_bound_says(kind, beta):
    """Executed gradients in the balls of several nets, against those of a copy in float64."""
    model, shape = softplus_net(kind, beta=beta, seed=5)
    net, x, length = trace_network(model, shape), torch.randn(20, *shape), 0.2
    y, other = torch.zeros(20).long(), torch.ones(20).long()
    at = expand_outputs(net, x, lambda logits: logits[:, :1] - logits[:, 1:2])
    ball = Ball(torch.full((20,), length).double(), at.blur)
    reaches = net.reaches(at.values, ball)
    errors = rounding(net, at.values, reaches, ball.radius, FLOAT32)
    allowed = gradient_errors(net, Executed(at, ball, reaches, errors, FLOAT32), slice(1), torch.ones(20).double())
    worst = torch.zeros(20).double()
    for _ in range(5):
        direction = torch.nn.functional.normalize(torch.randn(20, x[0].numel()))
        moved = x + 0.99 * length * direction.view_as(x)
        truth = gradient(copy.deepcopy(model).double(), moved.double(), y, other, "margin")
        worst = torch.maximum(worst, (gradient(model, moved, y, other, "margin") - truth).norm(dim=1))
    assert bool((worst <= allowed).all())
    assert beta > 100 or float(allowed.max()) < 1e4 * float(worst.max())


def test_the_model_stays_as_it_is():
    model, shape = softplus_net("residual", beta=2.0, seed=0)
    model.train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    lc.explanation_bound(model, torch.rand(2, *shape), torch.tensor([0, 1]), 0.1, of="loss")
    assert model.training and all(torch.equal(before[name], value) for name, value in model.state_dict().items())

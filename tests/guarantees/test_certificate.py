"""Certified radii: exact where a closed form exists, at most what an attack finds, at least the Lipschitz radius."""

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.optimize import linprog
from sklearn.datasets import load_digits
from torch import nn

import lowcurve as lc
from lowcurve.attacks.boundary import boundary_distance
from lowcurve.errors import UserError
from lowcurve.guarantees.expansion import curvature_within, expand, knapsack
from lowcurve.guarantees.graph import trace_network
from lowcurve.guarantees.radius import combined_radius
from tests.guarantees.oracles import softplus_net

KINDS = ("mlp", "conv", "residual", "branches", "lipschitz", "lipschitz images")


@pytest.fixture(scope="module")
def digits_net():
    """A small normalized convolutional net, trained for a moment, with test samples."""
    data = load_digits()
    x = torch.tensor(data.data / 16, dtype=torch.float32).view(-1, 1, 8, 8)
    y = torch.tensor(data.target)
    torch.manual_seed(0)
    model = nn.Sequential(
        lc.spectral_norm(nn.Conv2d(1, 8, 4, 2, 1), (8, 8)), lc.CenteredSoftplus(1.0), nn.Flatten(),
        lc.spectral_norm(nn.Linear(128, 10)),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for step in range(120):
        rows = torch.arange(step * 128, (step + 1) * 128) % 1500
        optimizer.zero_grad()
        nn.functional.cross_entropy(20 * model(x[rows]), y[rows]).backward()
        optimizer.step()
    return model.eval(), x[1500:1600], y[1500:1600]


def test_a_linear_model_has_the_exact_radius():
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    x = torch.randn(20, 4)
    logits = model(x).detach().double()
    y = logits.argmax(1)
    weight = model.weight.detach().double()
    for radius, row, k in zip(lc.certify(model, x, y).radius, logits, y, strict=True):
        truth = min((row[k] - row[c]) / (weight[k] - weight[c]).norm() for c in range(3) if c != k)
        assert truth * (1 - 1e-3) - 1e-4 <= radius <= truth


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.floats(1e-3, 10), st.floats(1e-3, 5), st.floats(0, 20), st.floats(1e-2, 10))
def test_combined_radius_uses_the_margin_up_exactly(margin, gradient, hessian, lipschitz):
    def tensor(v):
        return torch.tensor(v, dtype=torch.float64)

    radius = float(combined_radius(*map(tensor, (margin, gradient, hessian, lipschitz))))
    start = min(gradient, lipschitz)
    kink = [(lipschitz - start) / hessian] if hessian > 0 and (lipschitz - start) / hessian < radius else None
    used, _ = quad(lambda t: min(start + hessian * t, lipschitz), 0, radius, points=kink)
    assert used == pytest.approx(margin, rel=1e-6)
    assert radius >= margin / lipschitz * (1 - 1e-12)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(1, 8), st.integers(0, 10**6))
def test_knapsack_equals_the_linear_program(count, seed):
    g = torch.Generator().manual_seed(seed)
    weight, caps = torch.rand(2, count, generator=g, dtype=torch.float64)
    budget = torch.rand(1, generator=g, dtype=torch.float64) * count / 2
    truth = linprog(-weight.numpy(), A_ub=[[1.0] * count], b_ub=budget.numpy(), bounds=[(0, float(c)) for c in caps])
    assert float(knapsack(weight, caps, budget)) == pytest.approx(-truth.fun, abs=1e-9)


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_the_expansion_bounds_margins_at_every_distance(kind, normalized):
    """m(x+Δ) ≥ m − g‖Δ‖ − K‖Δ‖²/2 at small, large and worst directions, and K ≤ the data-free Hessian bound."""
    for seed, beta in enumerate((0.5, 2.0, 8.0)):
        model, shape = softplus_net(kind, beta, seed, normalized)
        net = trace_network(model, shape)
        g = torch.Generator().manual_seed(seed)
        x = torch.randn(8, *shape, generator=g)
        y = torch.randint(3, (8,), generator=g)
        at = expand(net, x, y)
        bent = curvature_within(net, at, net.reaches())
        assert bool((bent <= lc.bounds(model, shape).margin_hessian[y] + 1e-9).all())
        for length in (1e-2, 0.3, 2.0, 20.0):
            for sign in (1, -1):
                delta = torch.randn(8, *shape, generator=g, dtype=torch.float64) if sign == 1 else -_uphill(net, x, y)
                delta = delta / delta.flatten(1).norm(dim=1).view(-1, *(1 for _ in shape)) * length
                logits = net.values(x.double() + delta)[-1]
                margins = logits.gather(1, y.view(-1, 1)) - logits
                floor = at.margins - at.gradient_norms * length - bent * length**2 / 2
                assert bool((margins >= floor - 1e-9).all())


def _uphill(net, x, y):
    x = x.double().requires_grad_()
    logits = net.values(x)[-1]
    margin = logits.gather(1, y.view(-1, 1)).squeeze(1) - logits.scatter(1, y.view(-1, 1), -math.inf).amax(1)
    return torch.autograd.grad(margin.sum(), x)[0]


@pytest.mark.parametrize("local", [False, True])
def test_no_attack_gets_inside_a_certified_ball(local, digits_net):
    model, x, y = digits_net
    found = lc.certify(model, x, y, local=local)
    assert float(found.correct.double().mean()) > 0.8
    assert bool((found.radius >= found.lipschitz_radius).all())
    nearest = boundary_distance(model, x, y)
    assert bool((found.radius <= nearest)[found.correct].all())
    chosen = found.radius > 0
    broken = lc.attack(model, x[chosen], y[chosen], "apgd-t", eps=found.radius[chosen].float() * 0.999, steps=10)
    assert int(broken.success.sum()) == 0
    ratio = (found.radius / nearest)[found.correct].median()
    assert ratio > (0.85 if local else 0.7)  # tight, not only true


def test_hessian_and_gradient_bounds_hold_for_a_trained_net(digits_net):
    """At samples, halfway between samples of different classes, and in noise: the largest of 60 exact Hessians."""
    model, x, _ = digits_net
    found = lc.bounds(model, (1, 8, 8))
    twin = copy.deepcopy(model).double().requires_grad_(False)
    points = torch.cat([x[:20], (x[:20] + x[20:40]) / 2, torch.randn(20, 1, 8, 8)]).double().flatten(1)

    def margin(v):
        logits = twin(v.view(1, 1, 8, 8))[0]
        return logits[0] - logits[1]

    slopes = torch.func.vmap(torch.func.grad(margin))(points).norm(dim=1)
    hessians = torch.linalg.matrix_norm(torch.func.vmap(torch.func.hessian(margin))(points), ord=2)
    assert 0.1 * found.margin_lipschitz[0, 1] < slopes.max() <= found.margin_lipschitz[0, 1]
    assert 0.1 * found.margin_hessian[0, 1] < hessians.max() <= found.margin_hessian[0, 1]


@pytest.mark.parametrize("kind", KINDS)
def test_random_nets_are_not_contradicted(kind):
    for seed in range(3):
        model, shape = softplus_net(kind, (0.5, 2.0, 10.0)[seed], seed)
        x = torch.rand(30, *shape, generator=torch.Generator().manual_seed(seed))
        y = model(x).argmax(1)
        plain, local = lc.certify(model, x, y), lc.certify(model, x, y, local=True)
        nearest = boundary_distance(model, x, y, targets=2)
        assert bool((plain.radius <= local.radius).all())
        assert bool((local.radius[plain.correct] <= nearest[plain.correct]).all())
        assert bool((plain.radius >= plain.lipschitz_radius).all())


def test_boundary_distance_is_exact_for_a_sphere_like_problem():
    """One softplus pair: the boundary s(z) = c has a known distance along the only direction that matters."""
    model = nn.Sequential(nn.Linear(3, 1, bias=False), lc.CenteredSoftplus(2.0), nn.Linear(1, 2))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[0.0, 3.0, 4.0]]))
        model[2].weight.copy_(torch.tensor([[1.0], [0.0]]))
        model[2].bias.copy_(torch.tensor([-1.0, 0.0]))
    x = torch.tensor([[5.0, 1.0, 1.0]])
    target = math.log(2 * math.exp(2.0) - 1) / 2  # s₀(z; 2) = 1
    truth = (7.0 - target) / 5
    assert float(boundary_distance(model, x, torch.tensor([0]))) == pytest.approx(truth, rel=1e-3)
    assert 0.9 * truth <= float(lc.certify(model, x, torch.tensor([0]), local=True).radius) <= truth


def test_misclassified_samples_have_radius_zero():
    model, shape = softplus_net("mlp", 1.0, seed=0)
    x = torch.randn(30, *shape)
    wrong = (model(x).argmax(1) + 1) % 3
    found = lc.certify(model, x, wrong, local=True)
    assert not found.correct.any() and not found.radius.any() and bool((found.margin <= 0).all())


def test_kinks_leave_the_lipschitz_radius():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(3, 2))
    x = torch.rand(16, 1, 4, 4)
    found = lc.certify(model, x, model(x).argmax(1), local=True)
    assert torch.equal(found.radius, found.lipschitz_radius)
    assert bool(found.radius.gt(0).all())
    assert bool((found.radius <= boundary_distance(model, x, model(x).argmax(1))).all())


def test_vacuous_certificates_say_so(digits_net):
    model, x, y = digits_net
    assert not lc.certify(model, x, y).vacuous
    steep = nn.Sequential(model, *(nn.Sequential(nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 10)) for _ in range(4)))
    for layer in steep[1:].modules():
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=5.0)
    labels = steep(x).argmax(1)
    assert lc.certify(steep, x, labels).vacuous


def test_what_the_trace_does_not_see_is_refused():
    model = nn.Sequential(nn.Linear(3, 3))
    model.register_forward_hook(lambda module, inputs, output: output + 1.0)
    with pytest.raises(UserError, match="has a forward hook"):
        lc.certify(model, torch.rand(2, 3), torch.tensor([0, 1]))
    with pytest.raises(UserError, match="expected 2 integer labels"):
        lc.certify(model, torch.rand(2, 3), torch.tensor([0]))
    with pytest.raises(UserError, match="labels from 0 to 2"):
        lc.certify(nn.Linear(3, 3), torch.rand(1, 3), torch.tensor([7]))


def test_certifying_changes_nothing(digits_net):
    model, x, y = digits_net
    model.train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    state = torch.get_rng_state()
    lc.certify(model, x[:4], y[:4], local=True)
    assert model.training and all(p.requires_grad for p in model.parameters())
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())
    model.eval()


def test_a_model_that_overwrites_its_input_does_not_overwrite_the_samples():
    x = torch.rand(3, 2)
    before = x.clone()
    lc.certify(nn.Sequential(nn.SiLU(inplace=True), nn.Linear(2, 3)), x, torch.tensor([0, 1, 2]))
    assert torch.equal(x, before)

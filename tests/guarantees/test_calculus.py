"""Global bounds against exact derivatives, at random points and at points found by ascent."""

import math

import pytest
import torch
from torch import nn

import lowcurve as lc
from lowcurve.errors import UserError
from lowcurve.guarantees.calculus import Bend, Block, Gains, added, concatenated, linear
from lowcurve.guarantees.graph import trace_network
from lowcurve.guarantees.theorem import chain_curvature
from tests.guarantees.oracles import margin_hessian_norm, softplus_net

KINDS = ("mlp", "conv", "residual", "branches", "lipschitz", "lipschitz images")


def batched_derivatives(model, x):
    """Gradients and Hessians of every logit at a batch of points, float64: (N, C, d) and (N, C, d, d)."""
    model = model.double()

    def logits(v):
        return model(v.unflatten(0, x.shape[1:])[None])[0]

    flat = x.double().flatten(1)
    model.requires_grad_(False)
    return torch.func.vmap(torch.func.jacrev(logits))(flat), torch.func.vmap(torch.func.hessian(logits))(flat)


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_hessian_and_gradient_bounds_hold_at_random_points(kind, normalized):
    """12 families × 5 nets × 26 points = 1,560 exact Hessians of all logits and margins."""
    tightest = 0.0
    for seed in range(5):
        beta = (0.5, 1.0, 3.0, 10.0, 1.0)[seed]
        model, shape = softplus_net(kind, beta, seed, normalized)
        found = lc.bounds(model, shape)
        jacobian, hessian = batched_derivatives(model, 2 * torch.randn(26, *shape))
        norms = torch.linalg.matrix_norm(hessian, ord=2).amax(0)
        assert bool((jacobian.norm(dim=2).amax(0) <= found.logit_lipschitz).all())
        assert bool((norms <= found.logit_hessian).all())
        assert float(torch.linalg.matrix_norm(jacobian, ord=2).max()) <= found.lipschitz.value
        for a in range(3):
            for b in range(3):
                margin = torch.linalg.matrix_norm(hessian[:, a] - hessian[:, b], ord=2).max()
                slope = (jacobian[:, a] - jacobian[:, b]).norm(dim=1).max()
                assert margin <= found.margin_hessian[a, b] and slope <= found.margin_lipschitz[a, b]
                if a != b:
                    tightest = max(tightest, float(margin / found.margin_hessian[a, b]))
    assert tightest > 0.01  # a bound, not a platitude


@pytest.mark.parametrize("kind", KINDS)
def test_ascent_finds_no_point_beyond_the_bound(kind):
    model, shape = softplus_net(kind, 2.0, seed=3)
    bound = float(lc.bounds(model, shape).margin_hessian[0, 1])
    model = model.double()
    direction = torch.randn(shape, dtype=torch.float64)
    direction /= direction.norm()
    x = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([x], 0.2)
    largest = 0.0

    def image_of(v):
        margin = (model(x[None])[0] * torch.tensor([1.0, -1.0, 0.0])).sum()
        gradient = torch.autograd.grad(margin, x, create_graph=True)[0]
        return torch.autograd.grad((gradient * v).sum(), x, create_graph=True)[0]

    for _ in range(15):  # ascend ‖∇²m v‖, v following the leading eigenvector
        image = image_of(direction)
        largest = max(largest, float(image.detach().norm()))
        optimizer.zero_grad()
        (-image.norm()).backward()
        optimizer.step()
        direction = image.detach() / image.detach().norm().clamp_min(1e-12)
    assert 0 < largest <= bound


def test_loss_hessian_is_bounded():
    for seed, kind in enumerate(KINDS):
        model, shape = softplus_net(kind, 2.0, seed)
        found = lc.bounds(model, shape)
        model = model.double()
        for y in range(3):
            loss = lambda v, y=y, model=model: nn.functional.cross_entropy(model(v[None]), torch.tensor([y]))  # noqa: E731
            for _ in range(2):
                x = torch.randn(shape, dtype=torch.float64)
                hessian = torch.func.hessian(loss)(x).reshape(x.numel(), -1)
                assert torch.linalg.matrix_norm(hessian, ord=2) <= found.loss_hessian.value
                assert torch.func.grad(loss)(x).norm() <= found.loss_lipschitz.value


def test_refinement_never_loses_to_the_plain_pair_rule():
    """The plain rule K_{gf} = K_g L_f² + L_g K_f with spectral norms only, for an MLP."""
    model, shape = softplus_net("mlp", 4.0, seed=0)
    weights = [m.weight.detach().double() for m in model if isinstance(m, nn.Linear)]
    spectral = [float(torch.linalg.matrix_norm(w, ord=2)) for w in weights]
    row = weights[2][0] - weights[2][1]
    k1 = 1.0 * spectral[0] ** 2
    k2 = 1.0 * (spectral[1] * spectral[0]) ** 2 + spectral[1] * k1
    assert float(lc.bounds(model, shape).margin_hessian[0, 1]) <= float(row.norm()) * k2 * 1.001


def test_rules_on_known_numbers():
    f = Block(Gains(2.0, 3.0, 1.0), (Bend("a", 4.0, 2.0),))
    assert linear(f, Gains(5.0, 7.0, 1.0)) == Block(Gains(10.0, 21.0, 3.0), (Bend("a", 28.0, 4.0),))
    assert added(f, f) == Block(Gains(4.0, 6.0, 2.0), (Bend("a", 8.0, 4.0),))
    assert concatenated(f, f).gains == Gains(math.sqrt(8), 6.0, math.sqrt(2))


def test_a_relu_net_has_a_lipschitz_bound_and_no_hessian_bound():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    found = lc.bounds(model, (3,))
    assert math.isfinite(found.lipschitz.value)
    assert math.isinf(found.loss_hessian.value)
    assert [row.share for row in found.layers] == [0.0, 1.0, 0.0]


def test_the_table_says_where_curvature_comes_from():
    model, shape = softplus_net("residual", 1.0, seed=0)
    with torch.no_grad():
        model[2].log_beta.fill_(math.log(100.0))
    found = lc.bounds(model, shape)
    shares = {row.name: row.share for row in found.layers}
    assert sum(shares.values()) == pytest.approx(1.0)
    assert max(shares, key=shares.get) == "2"
    row = next(row for row in found.layers if row.name == "2")
    assert row.beta == pytest.approx(100.0, rel=1e-4)
    assert found.layers[0].name == "0+1"  # the batch norm is folded into the convolution before it
    assert "share" in str(found) and "not a bound" in str(found)


def test_traced_steps_compute_what_the_model_computes():
    for kind in KINDS:
        model, shape = softplus_net(kind, 2.0, seed=1)
        x = torch.randn(6, *shape)
        torch.testing.assert_close(trace_network(model, shape).values(x)[-1], model(x).double(), rtol=1e-5, atol=1e-5)


class Odd(nn.Module):
    def forward(self, x):
        return torch.exp(x)


class Forking(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (nn.LayerNorm(4), "LayerNorm at '1' has no known constants; replace it"),
        (Odd(), "the operation 'exp'"),
        (Forking(), "torch.fx can trace"),
        (nn.BatchNorm1d(4, track_running_stats=False), "normalizes by the batch"),
        (nn.Softmax(1), "Softmax at '1' has no known constants"),
    ],
)
def test_what_cannot_be_bounded_is_refused_by_name(layer, message):
    model = nn.Sequential(nn.Linear(3, 4), layer, nn.Linear(4, 2)).eval()
    with pytest.raises(UserError, match=message):
        lc.bounds(model, (3,))


def test_bounding_changes_nothing_in_the_model():
    model, shape = softplus_net("residual", 1.0, seed=0, normalized=True)
    model.train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    state = torch.get_rng_state()
    lc.bounds(model, shape)
    assert model.training and all(p.requires_grad for p in model.parameters())
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())


def test_the_lemma_on_the_line_holds_with_the_product_to_i_minus_1():
    """Compositions of softplus and affine maps: 0 violations; with the product to i there are many."""
    generator = torch.Generator().manual_seed(0)
    printed = 0
    for _ in range(200):
        depth = int(torch.randint(1, 5, (1,), generator=generator))
        beta = torch.rand(depth, generator=generator, dtype=torch.float64) * 4 + 0.2
        slope = torch.randn(depth, generator=generator, dtype=torch.float64)
        x = torch.randn((), generator=generator, dtype=torch.float64, requires_grad=True)
        value, first, second = x, [], []
        for b, w in zip(beta, slope, strict=True):
            sigma = torch.sigmoid(b * w * value.detach())
            first.append(float(w * sigma))
            second.append(float(w**2 * b * sigma * (1 - sigma)))
            value = torch.nn.functional.softplus(w * value, beta=float(b))
        d1 = torch.autograd.grad(value, x, create_graph=True)[0]
        d2 = torch.autograd.grad(d1, x)[0]
        truth = float((d2 / d1).detach().abs())
        assert truth <= chain_curvature(first, second) * (1 + 1e-9)
        shifted = sum(
            abs(b / a) * math.prod(abs(v) for v in first[: i + 1])
            for i, (a, b) in enumerate(zip(first, second, strict=True))
        )
        printed += truth > shifted * (1 + 1e-9)
    assert printed > 50


def test_theorem_one_is_violated_by_the_sum_of_two_softplus():
    """f = s(x) + s(−x): curvature beyond any constant, while the sum of Theorem 1 is finite."""
    model = nn.Sequential(nn.Linear(1, 2, bias=False), lc.CenteredSoftplus(1.0), nn.Linear(2, 2, bias=False))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0], [-1.0]]))
        model[2].weight.copy_(torch.tensor([[1.0, 1.0], [0.0, 0.0]]))
    found = lc.bounds(model, (1,))
    x = torch.tensor([1e-6], dtype=torch.float64)
    hessian = margin_hessian_norm(model, x, 0, 1)
    gradient = torch.func.grad(lambda v: model(v[None])[0, 0])(x).norm()
    assert hessian / float(gradient) > 1e5 > 100 * found.theorem_one.value
    assert hessian <= float(found.margin_hessian[0, 1])
    assert "not a bound" in found.theorem_one.reason

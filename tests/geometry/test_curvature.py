"""`curvature` against dense Hessians of trained networks and against closed forms."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lowcurve as lc
from lowcurve.objectives.cross_entropy import log_odds_against
from lowcurve.random import generator
from tests.geometry.conftest import KINDS, Trained, dense_hessians, dense_norms

Nets = dict[tuple[str, int], Trained]


def scalars(net: nn.Module) -> dict:
    def against(x: Tensor, y: Tensor) -> Tensor:
        z = net(x[None])[0]
        return torch.where(torch.arange(10) == y, -torch.inf, z - torch.where(torch.arange(10) == y, z, 0).sum())

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return torch.log1p(against(x, y).exp().sum())

    def margin(x: Tensor, y: Tensor) -> Tensor:
        return -against(x, y).max()

    def logit(x: Tensor, y: Tensor) -> Tensor:
        return net(x[None])[0, 3]

    def energy(x: Tensor, y: Tensor) -> Tensor:
        return net(x[None])[0].square().sum()

    return {"loss": loss, "margin": margin, 3: logit, "energy": energy}


OF = {"energy": lambda outputs, y: outputs.square().sum(dim=1)}


@pytest.fixture(scope="module")
def truths(trained: Nets) -> dict:
    """Gradient and Hessian norms for each network and each function."""
    return {
        (key, of): dense_norms(function, case.x, case.y)
        for key, case in trained.items()
        for of, function in scalars(case.net).items()
        if of in ("loss", "margin") or key[0] == "mlp"
    }


def cases() -> list:
    return [
        (key, of)
        for key in KINDS
        for of in ("loss", "margin", 3, "energy")
        if of in ("loss", "margin") or key[0] == "mlp"
    ]


@pytest.mark.parametrize(("key", "of"), cases())
def test_every_sample_is_right_at_the_default_tolerance(trained: Nets, truths: dict, key, of) -> None:
    case, (slope, truth) = trained[key], truths[key, of]
    geometry = lc.curvature(case.net, case.x, case.y, of=OF.get(of, of))
    error = (truth - geometry.hessian_norm) / truth
    assert error.max() <= 1e-2
    assert error.min() >= -1e-10  # a lower estimate
    assert torch.allclose(geometry.gradient_norm, slope, rtol=1e-9)
    assert torch.allclose(geometry.curvature, geometry.hessian_norm / slope, rtol=1e-9)
    assert (geometry.residual <= 1e-2 * geometry.hessian_norm).all()
    assert (geometry.iterations < 30).all()


@pytest.mark.parametrize(("key", "of"), cases())
def test_a_fine_tolerance_gives_many_digits(trained: Nets, truths: dict, key, of) -> None:
    case, (_, truth) = trained[key], truths[key, of]
    found = lc.curvature(case.net, case.x, case.y, of=OF.get(of, of), tol=1e-8, max_iterations=64).hessian_norm
    assert torch.allclose(found, truth, rtol=1e-6)
    assert (found <= truth * (1 + 1e-10)).all()


@pytest.mark.parametrize("key", KINDS)
def test_float32_agrees_with_the_float64_truth(trained: Nets, truths: dict, key) -> None:
    case, (slope, truth) = trained[key], truths[key, "loss"]
    geometry = lc.curvature(copy.deepcopy(case.net).float(), case.x.float(), case.y)
    assert geometry.hessian_norm.dtype == torch.float32
    assert torch.allclose(geometry.gradient_norm.double(), slope, rtol=1e-3)
    assert torch.allclose(geometry.hessian_norm.double(), truth, rtol=1e-2)


@pytest.mark.parametrize("scale", [20.0, 200.0])
def test_saturated_samples_keep_their_curvature(trained: Nets, scale: float) -> None:
    """At loss < 1e-12, ℓ = Σ_{c≠y} exp(z_c − z_y) to twelve digits, and C_f does not change when ℓ is scaled."""
    case = trained["mlp", 1]
    net = nn.Sequential(case.net, _Scale(scale))
    z = net(case.x).detach()
    y = z.argmax(dim=1)
    log_odds = (z - z.amax(dim=1, keepdim=True)).scatter(1, y[:, None], -torch.inf).logsumexp(dim=1)
    sure = log_odds < -28  # loss < 1e-12; at scale 200 most losses are 0 in float32
    assert sure.sum() >= 8

    def tail(x: Tensor, label: Tensor, offset: Tensor) -> Tensor:
        z = net(x[None])[0]
        own = torch.arange(10) == label
        return torch.where(own, -torch.inf, z - torch.where(own, z, 0).sum() - offset).exp().sum()

    slope, truth = dense_norms(tail, case.x[sure], y[sure], log_odds[sure])
    for model, dtype, precision in ((net, torch.float64, 1e-2), (copy.deepcopy(net).float(), torch.float32, 2e-2)):
        geometry = lc.curvature(model, case.x[sure].to(dtype), y[sure])
        assert all(torch.isfinite(field).all() for field in vars(geometry).values())
        assert torch.allclose(geometry.curvature.double(), truth / slope, rtol=precision)


class _Scale(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * x


def test_linear_networks_have_closed_forms() -> None:
    net = nn.Linear(6, 2).double()
    x, y = torch.randn(5, 6, dtype=torch.float64), torch.tensor([0, 1, 0, 1, 1])
    for of in ("margin", 1):
        flat = lc.curvature(net, x, y, of=of)
        assert (flat.hessian_norm == 0).all() and (flat.curvature == 0).all() and (flat.residual == 0).all()
    w = (net.weight[1] - net.weight[0]).detach()
    p = torch.sigmoid(net(x)[:, 1] - net(x)[:, 0]).detach()
    found = lc.curvature(net, x, y)
    assert torch.allclose(found.hessian_norm, p * (1 - p) * (w @ w), rtol=1e-9)
    assert torch.allclose(found.gradient_norm, (p - y.double()).abs() * w.norm(), rtol=1e-9)


def test_zero_gradient_the_papers_counterexample_is_finite() -> None:
    """f = s(x) + s(−x) at 0 has f' = 0 and f'' = β/2, so that no bound on C_f by the weights can hold."""
    beta = 3.0
    geometry = lc.curvature(
        nn.Identity(),
        torch.zeros(2, 1, dtype=torch.float64),
        of=lambda x, _: (F.softplus(x, beta) + F.softplus(-x, beta)).sum(dim=1),
    )
    assert geometry.gradient_norm.abs().max() == 0
    assert torch.allclose(geometry.hessian_norm, torch.tensor(beta / 2, dtype=torch.float64))
    assert torch.isfinite(geometry.curvature).all() and (geometry.curvature > 1e9).all()


def test_degenerate_and_indefinite_hessians() -> None:
    """f = ½ xᵀ diag(λ) x with eigenvalues ±2, repeated, and one sample with −5 alone."""
    diagonals = torch.tensor([[2, -2, 1, 1], [2, 2, -2, -2], [-5, 1, 1, 1], [3, 3, 3, 3], [0, 0, 0, 0]]).double()
    x = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    y = torch.arange(5)
    geometry = lc.curvature(nn.Identity(), x, y, of=lambda z, row: (diagonals[row] * z.square()).sum(dim=1) / 2)
    assert torch.allclose(geometry.hessian_norm, torch.tensor([2, 2, 5, 3, 0]).double())


def test_power_iteration_is_the_papers_estimator(trained: Nets) -> None:
    """|uᵀHu| after ten products with the dense Hessian, from the same start; never above Lanczos."""
    case = trained["mlp", 1000]
    power = lc.curvature(case.net, case.x, case.y, method="power", max_iterations=10)
    start = F.normalize(torch.randn(64, generator=generator(0)).double(), dim=0)
    for i, h in enumerate(dense_hessians(scalars(case.net)["loss"], case.x[:8], case.y[:8])):
        u = start
        for _ in range(9):
            u = F.normalize(h @ u, dim=0)
        assert torch.allclose((u @ h @ u).abs(), power.hessian_norm[i], rtol=1e-6)
    lanczos = lc.curvature(case.net, case.x, case.y, tol=1e-6, max_iterations=64)
    assert (power.hessian_norm <= lanczos.hessian_norm * (1 + 1e-9)).all()
    assert (power.iterations == 10).all()


def test_labels_default_to_predictions(trained: Nets) -> None:
    case = trained["mlp", 1]
    predicted = case.net(case.x).argmax(1)
    one, other = lc.curvature(case.net, case.x), lc.curvature(case.net, case.x, predicted)
    assert torch.equal(one.curvature, other.curvature)


def test_results_do_not_depend_on_memory_or_company(trained: Nets) -> None:
    case = trained["conv", 1000]
    together = lc.curvature(case.net, case.x, case.y)
    apart = lc.curvature(case.net, case.x[:8], case.y[:8], memory=1)
    alone = lc.curvature(case.net, case.x[7:8], case.y[7:8])
    assert torch.allclose(together.hessian_norm[:8], apart.hessian_norm, rtol=1e-6)
    assert torch.equal(together.iterations[:8], apart.iterations)
    assert torch.allclose(together.hessian_norm[7:8], alone.hessian_norm, rtol=1e-6)


def test_curvature_ignores_the_scale_of_f_and_rotations_of_the_input(trained: Nets) -> None:
    case = trained["mlp", 1]
    plain = lc.curvature(case.net, case.x, of=2, tol=1e-6, max_iterations=64)
    scaled = lc.curvature(case.net, case.x, of=lambda z, _: -7 * z[:, 2], tol=1e-6, max_iterations=64)
    assert torch.allclose(scaled.curvature, plain.curvature, rtol=1e-6)
    assert torch.allclose(scaled.hessian_norm, 7 * plain.hessian_norm, rtol=1e-6)
    rotation, _ = torch.linalg.qr(torch.randn(64, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    turned = nn.Sequential(nn.Linear(64, 64, bias=False), nn.Unflatten(1, (1, 8, 8)), case.net).double()
    turned[0].weight.data = rotation
    rotated = lc.curvature(turned, case.x.flatten(1) @ rotation, of=2, tol=1e-6, max_iterations=64)
    assert torch.allclose(rotated.hessian_norm, plain.hessian_norm, rtol=1e-6)


@pytest.mark.parametrize("key", KINDS)
def test_loss_curvature_is_bounded_by_the_log_odds(trained: Nets, key) -> None:
    """C_loss ≤ p ‖∇m‖ + C_m with m = log Σ_{c≠y} exp(z_c − z_y), p the label's probability."""
    case = trained[key]
    options = {"tol": 1e-6, "max_iterations": 64}
    loss = lc.curvature(case.net, case.x, case.y, **options)
    m = lc.curvature(case.net, case.x, case.y, of=log_odds_against, **options)
    p = case.net(case.x).softmax(dim=1).gather(1, case.y[:, None]).squeeze(1)
    bound = p * m.gradient_norm + m.curvature
    assert (loss.curvature <= bound * (1 + 1e-6)).all()
    assert (loss.curvature / bound).max() > 0.6


def test_loss_curvature_grows_with_the_logits_and_margin_curvature_does_not(trained: Nets) -> None:
    case = trained["mlp", 1]
    doubled = nn.Sequential(case.net, _Scale(2.0))
    y = case.net(case.x).argmax(dim=1)
    loss, more = lc.curvature(case.net, case.x, y), lc.curvature(doubled, case.x, y)
    assert more.curvature.median() > 1.5 * loss.curvature.median()
    margin, same = lc.curvature(case.net, case.x, y, of="margin"), lc.curvature(doubled, case.x, y, of="margin")
    assert torch.allclose(margin.curvature, same.curvature, rtol=2e-2)

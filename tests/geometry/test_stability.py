"""Gradient stability and local linearity against closed forms, finite differences and their own bounds."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn

import lowcurve as lc
from lowcurve.errors import UserError
from lowcurve.geometry.stability import RADII
from lowcurve.random import generator
from tests.geometry.conftest import Trained

Nets = dict[tuple[str, int], Trained]
DELTA = 2.5


def exponential(outputs: Tensor, y: Tensor) -> Tensor:
    """f = exp(δ x₁), for which both sharp bounds are attained in the direction of x₁."""
    return torch.exp(DELTA * outputs[:, 0])


def test_one_dimensional_exponentials_attain_the_sharp_bounds() -> None:
    """In one dimension ε = ±r; the change is e^{±δr} − 1 and the larger of the two is the bound."""
    x, radii = torch.zeros(40, 1, dtype=torch.float64), [1e-3, 0.1, 1.0]
    change = lc.gradient_stability(nn.Identity(), x, None, radii, samples=1, of=exponential)
    error = lc.local_linearity(nn.Identity(), x, None, radii, samples=1, of=exponential)
    for i, r in enumerate(radii):
        a = DELTA * r
        assert change.sharp[i, 0] == pytest.approx(math.expm1(a))
        assert change.values[i].max() == pytest.approx(math.expm1(a), rel=1e-9)
        assert change.values[i].min() == pytest.approx(-math.expm1(-a), rel=1e-9)
        assert change.quadratic[i, 0] == pytest.approx(a)
        assert error.sharp[i, 0] == pytest.approx((math.exp(a) - 1 - a) / DELTA, rel=1e-6)
        assert error.values[i].max() == pytest.approx((math.exp(a) - 1 - a) / DELTA, rel=1e-6)
        assert error.quadratic[i, 0] == pytest.approx(DELTA * r * r / 2)


def test_equation_1_of_the_paper_is_not_a_bound_and_the_corrected_one_is() -> None:
    """δ = 1, r = 2: the error is 4.39; the paper's δr/2 is 1, with r² 2, corrected δr²e^a/2 14.8, sharp 4.39."""
    found = lc.local_linearity(
        nn.Identity(), torch.zeros(20, 1, dtype=torch.float64), None, [2.0], 1, of=lambda z, _: z[:, 0].exp()
    )
    error = found.values.max().item()
    assert error == pytest.approx(4.389, abs=1e-3)
    assert error > 1.0 * 2.0 / 2 and error > 1.0 * 2.0**2 / 2
    assert error == pytest.approx(found.sharp[0, 0].item())
    assert error <= 0.5 * 2.0**2 * math.exp(2.0)


def test_adversarial_directions_find_the_largest_eigenvector_of_a_quadratic() -> None:
    """f = ½xᵀAx + b·x: the worst change is r‖A‖ / ‖b‖ at x = 0, which random directions miss by far."""
    d = 60
    diagonal = torch.linspace(0, 1, d, dtype=torch.float64).pow(8) * 3
    b = torch.randn(d, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def quadratic(z: Tensor, y: Tensor) -> Tensor:
        return (diagonal * z.square()).sum(dim=1) / 2 + z @ b

    x = torch.zeros(3, d, dtype=torch.float64)
    worst = 0.1 * 3 / b.norm()
    for function, factor in ((lc.gradient_stability, 1.0), (lc.local_linearity, 0.05)):
        options = {"radii": [0.1], "samples": 2, "of": quadratic}
        random = function(nn.Identity(), x, None, **options)
        climbed = function(nn.Identity(), x, None, direction="adversarial", steps=60, **options)
        assert climbed.values.max() == pytest.approx(factor * worst.item(), rel=1e-2)
        assert climbed.quadratic[0, 0] == pytest.approx(factor * worst.item(), rel=1e-2)
        assert random.values.max() < 0.6 * climbed.values.min()


@pytest.mark.parametrize("key", [("mlp", 1), ("conv", 1)])
def test_bounds_hold_with_the_true_curvature_along_the_way(trained: Nets, key) -> None:
    """δ is measured on a fine grid between x and the perturbed point, which this test finds again by its seed."""
    case, r = trained[key], 0.3
    noise = torch.randn(case.x.shape, generator=generator(0, 0)).double()
    step = r * noise / noise.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
    grid = [lc.curvature(case.net, case.x + t * step, case.y, tol=1e-4).curvature for t in torch.linspace(0, 1, 21)]
    delta = torch.stack(grid).amax(dim=0) * 1.001
    change = lc.gradient_stability(case.net, case.x, case.y, [r], samples=1, delta=delta)
    error = lc.local_linearity(case.net, case.x, case.y, [r], samples=1, delta=delta)
    assert (change.values[:, 0] <= change.sharp).all()
    assert (error.values[:, 0] <= error.sharp).all()


def test_values_are_what_they_say(trained: Nets) -> None:
    """Gradients at x and x + ε by torch.func, losses by torch's own cross-entropy, all in float64."""
    case, r = trained["mlp", 1], 0.05
    noise = torch.randn(case.x.shape, generator=generator(4, 0)).double()
    step = r * noise / noise.flatten(1).norm(dim=1).view(-1, 1, 1, 1)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(case.net(x[None]), y[None])

    gradient = torch.func.vmap(torch.func.grad(loss))
    g, moved = gradient(case.x, case.y).flatten(1).detach(), gradient(case.x + step, case.y).flatten(1).detach()
    values = [torch.func.vmap(loss)(x, case.y).detach() for x in (case.x, case.x + step)]
    unsure = values[0] > 1e-6  # torch's own loss has too few digits elsewhere
    change = lc.gradient_stability(case.net, case.x, case.y, [r], samples=1, seed=4).values[0, 0]
    error = lc.local_linearity(case.net, case.x, case.y, [r], samples=1, seed=4).values[0, 0]
    assert unsure.sum() > 5
    assert torch.allclose(change[unsure], ((moved - g).norm(dim=1) / g.norm(dim=1))[unsure], rtol=1e-6)
    remainder = (values[1] - values[0] - (g * step.flatten(1)).sum(dim=1)).abs() / g.norm(dim=1)
    assert torch.allclose(error[unsure], remainder[unsure], rtol=1e-4)


def test_saturated_samples_are_finite_in_float32(trained: Nets) -> None:
    """The logits times 300: most losses are zero in float32, their relative changes are not."""
    case = trained["mlp", 1]
    net = copy.deepcopy(case.net)
    net[-1].weight.data *= 300
    net[-1].bias.data *= 300
    y = net(case.x).argmax(dim=1)
    exact = lc.gradient_stability(net, case.x, y, [1e-3], samples=2).values
    found = lc.gradient_stability(net.float(), case.x.float(), y, [1e-3], samples=2).values
    assert torch.isfinite(found).all() and torch.allclose(found.double(), exact, rtol=0.05, atol=5e-3)
    assert torch.isfinite(lc.local_linearity(net, case.x.float(), y, [1e-3], samples=2).values).all()


def test_small_radii_follow_the_hessian(trained: Nets) -> None:
    """As r → 0 an adversary reaches r·C_f, and the linear error r²C_f/2; random noise stays below."""
    case = trained["conv", 1]
    options = {"radii": [1e-4], "samples": 2}
    for function in (lc.gradient_stability, lc.local_linearity):
        climbed = function(case.net, case.x, case.y, direction="adversarial", steps=20, **options)
        ratio = climbed.values.amax(dim=1) / climbed.quadratic
        assert (ratio <= 1.02).all() and ratio.median() > 0.99
        assert (function(case.net, case.x, case.y, **options).values <= climbed.quadratic * 1.02).all()


def test_samples_that_are_not_finite_leave_the_means_alone(trained: Nets) -> None:
    case = trained["mlp", 1]
    clean = lc.gradient_stability(case.net, case.x[1:], case.y[1:], [0.1], samples=1)
    x = case.x.clone()
    x[0] = torch.nan
    found = lc.gradient_stability(case.net, x, case.y, [0.1], samples=1)
    assert torch.isnan(found.values[0, 0, 0]) and torch.isfinite(found.values[0, 0, 1:]).all()
    assert torch.isfinite(torch.stack((found.mean, found.median, found.spread, found.predicted))).all()
    assert torch.allclose(found.predicted, clean.predicted)


def test_a_zero_gradient_has_no_relative_change() -> None:
    x = torch.tensor([[0.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    found = lc.gradient_stability(nn.Identity(), x, None, [0.1], 1, of=lambda z, _: z.square().sum(dim=1) / 2)
    assert torch.isnan(found.values[0, 0, 0]) and found.values[0, 0, 1] == pytest.approx(0.1)


def test_shapes_statistics_and_mistakes(trained: Nets) -> None:
    case = trained["mlp", 1]
    found = lc.gradient_stability(case.net, case.x[:4], case.y[:4], samples=3)
    assert found.values.shape == (9, 3, 4) and found.quadratic.shape == found.sharp.shape == (9, 4)
    assert RADII[0] == pytest.approx(1e-3) and RADII[-1] == pytest.approx(1e-1)
    assert torch.allclose(found.mean, found.values.mean(dim=(1, 2)))
    assert torch.allclose(found.spread, found.values.flatten(1).std(dim=1, correction=0))
    assert torch.allclose(found.predicted, found.quadratic.mean(dim=1))
    assert (found.mean.diff() > 0).all()  # it grows with the radius
    assert set(found.to_dict()) == {"radii", "mean", "median", "spread", "predicted", "sharp_median"}
    for options in ({"samples": 0}, {"radii": []}, {"radii": [-1.0]}, {"direction": "worst"}):
        with pytest.raises(UserError, match=r"expected|unknown direction"):
            lc.gradient_stability(case.net, case.x, case.y, **options)
    with pytest.raises(UserError, match="empty batch"):
        lc.gradient_stability(case.net, case.x[:0], case.y[:0])


def test_a_turn_is_one_minus_the_cosine_of_the_two_gradients() -> None:
    """f = ½ xᵀ diag(a) x has ∇f = a x: the turn at each ε is known, and the largest on the circle is found."""
    scale, x = torch.tensor([1.0, 4.0]).double(), torch.tensor([[1.0, 0.5]]).double()

    def function(outputs, y):
        return (scale * outputs.square()).sum(1) / 2

    def cosine(points):
        return nn.functional.cosine_similarity(scale * points, scale * x)

    arguments = (nn.Identity(), x, None, [0.3], 4)
    found = lc.gradient_stability(
        *arguments, of=function, direction="adversarial", steps=40, measured="turn"
    ).values[0].amax(0)  # fmt: skip
    angles = torch.linspace(0, 2 * math.pi, 5000).double()
    truth = (1 - cosine(x + 0.3 * torch.stack([angles.cos(), angles.sin()], 1))).max()
    assert float(found) == pytest.approx(float(truth), rel=0.02) and float(found) <= float(truth) + 1e-6
    with pytest.raises(UserError, match="measured"):
        lc.gradient_stability(*arguments, of=function, measured="angle")

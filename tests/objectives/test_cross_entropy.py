"""The cancellation-free cross-entropy: equal to torch's where that is exact, and exact where torch's is not."""

from fractions import Fraction

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from lowcurve.errors import UserError
from lowcurve.objectives.cross_entropy import cross_entropy_per_sample, log_odds_against


def derivatives(function, z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    gradient = torch.func.vmap(torch.func.grad(lambda a, b: function(a[None], b[None]).sum()))(z, y)
    hessian = torch.func.vmap(torch.func.hessian(lambda a, b: function(a[None], b[None]).sum()))(z, y)
    return gradient, hessian


def test_equals_torch_in_float64() -> None:
    z, y = torch.randn(50, 7, dtype=torch.float64) * 3, torch.randint(0, 7, (50,))
    ours = cross_entropy_per_sample(z, y)
    assert torch.allclose(ours, F.cross_entropy(z, y, reduction="none"), rtol=1e-12)
    p = z.softmax(dim=1)
    gradient, hessian = derivatives(cross_entropy_per_sample, z, y)
    assert torch.allclose(gradient, p - F.one_hot(y, 7), atol=1e-14)
    assert torch.allclose(hessian, torch.diag_embed(p) - p[:, :, None] * p[:, None, :], atol=1e-14)


@pytest.mark.parametrize("gap", [-85.0, -45.0, -20.0, -1.0, 0.0, 1.0, 19.9, 20.1, 45.0, 85.0])
@pytest.mark.parametrize("classes", [2, 5])
def test_float32_keeps_relative_precision_of_value_and_derivatives(gap: float, classes: int) -> None:
    """Against p and 1 − p in float64: no cancellation at large negative gaps, no threshold at positive ones."""
    z, y = torch.full((1, classes), gap), torch.tensor([0])
    z[0, 0] = 0
    odds = (classes - 1) * torch.exp(torch.tensor(gap, dtype=torch.float64))
    miss, hit = odds / (1 + odds), 1 / (1 + odds)  # 1 − p_y and p_y
    assert cross_entropy_per_sample(z, y).item() == pytest.approx(torch.log1p(odds).item(), rel=1e-6)
    gradient, hessian = derivatives(cross_entropy_per_sample, z, y)
    assert gradient[0, 0].item() == pytest.approx(-miss.item(), rel=1e-5)
    assert gradient[0, 1].item() == pytest.approx((miss / (classes - 1)).item(), rel=1e-5)
    assert hessian[0, 0, 0].item() == pytest.approx((miss * hit).item(), rel=1e-5, abs=1e-44)


def test_torch_loses_what_we_keep() -> None:
    z, y = torch.tensor([[30.0, 0.0, 0.0]]), torch.tensor([0])
    lost = torch.func.grad(lambda a: F.cross_entropy(a, y))(z)
    kept = torch.func.grad(lambda a: cross_entropy_per_sample(a, y).sum())(z)
    assert lost[0, 0] == 0  # the label's own entry: softmax rounds to 1
    assert kept[0, 0].item() == pytest.approx(-2 * 2.718281828459045**-30, rel=1e-5)


def test_exact_at_equal_logits() -> None:
    z, y = torch.zeros(1, 2), torch.tensor([1])
    gradient, hessian = derivatives(cross_entropy_per_sample, z, y)
    assert gradient.tolist() == [[0.5, -0.5]]
    assert hessian.tolist() == [[[0.25, -0.25], [-0.25, 0.25]]]


def test_double_backward_by_finite_differences() -> None:
    z = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    y = torch.tensor([0, 1, 2, 2])
    assert torch.autograd.gradcheck(lambda a: cross_entropy_per_sample(a, y), z)
    assert torch.autograd.gradgradcheck(lambda a: cross_entropy_per_sample(a, y), z)


def test_log_odds_are_rational_arithmetic() -> None:
    """e^m = Σ_{c≠y} p_c / p_y, with probabilities 1/6, 2/6, 3/6."""
    z = torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.float64).log().expand(3, 3)
    odds = [Fraction(5, 1), Fraction(4, 2), Fraction(3, 3)]
    assert torch.allclose(log_odds_against(z, torch.arange(3)).exp(), torch.tensor([float(o) for o in odds]).double())


def test_one_class_is_refused() -> None:
    with pytest.raises(UserError, match="C ≥ 2"):
        cross_entropy_per_sample(torch.zeros(3, 1), torch.zeros(3, dtype=torch.long))

"""The appendix's tensor calculus: definitions, the facts that hold, and counterexamples to those that do not."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from lowcurve.errors import UserError
from tests.geometry.tensors import covariant_matmul, essential_bound, pdiag2, pdiag3, unfold, unfolding_bound

sizes = st.integers(1, 5)


def matrices(seed: int, d: int, *widths: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(d, width, dtype=torch.float64, generator=generator) for width in widths]


def norm(matrix: Tensor) -> Tensor:
    return torch.linalg.matrix_norm(matrix, 2)


def identity(d: int) -> Tensor:
    return pdiag3(torch.ones(d, dtype=torch.float64))


def tensor_norm(tensor: Tensor, seed: int) -> float:
    """sup A(x, y, z) over unit vectors, from below, by alternating maximization from several starts."""
    best = 0.0
    for start in range(8):
        x, y, z = (
            F.normalize(m[:, 0], dim=0)
            for m in (matrices(seed + start + i, n, 1)[0] for i, n in enumerate(tensor.shape))
        )
        for _ in range(30):
            x = F.normalize(torch.einsum("abc,b,c->a", tensor, y, z), dim=0)
            y = F.normalize(torch.einsum("abc,a,c->b", tensor, x, z), dim=0)
            z = F.normalize(torch.einsum("abc,a,b->c", tensor, x, y), dim=0)
        best = max(best, float(torch.einsum("abc,a,b,c", tensor, x, y, z)))
    return best


def test_covariant_matmul_is_its_definition() -> None:
    tensor = torch.randn(2, 3, 4, dtype=torch.float64)
    m1, m2, m3 = (torch.randn(d, s, dtype=torch.float64) for d, s in ((2, 5), (3, 2), (4, 3)))
    expected = torch.zeros(5, 2, 3, dtype=torch.float64)
    for i in range(2):
        for j in range(3):
            for k in range(4):
                expected += tensor[i, j, k] * torch.einsum("a,b,c->abc", m1[i], m2[j], m3[k])
    assert torch.allclose(covariant_matmul(tensor, m1, m2, m3), expected)
    with pytest.raises(UserError, match="one matrix per mode, 3, got 2"):
        covariant_matmul(tensor, m1, m2)


@pytest.mark.parametrize("d", [1, 2, 5])
def test_pdiag_puts_values_on_the_diagonal_only(d: int) -> None:
    values = torch.arange(1.0, d + 1)
    for tensor, order in ((pdiag2(values), 2), (pdiag3(values), 3)):
        assert tensor.shape == (d,) * order
        assert all(tensor[(i,) * order] == values[i] for i in range(d))
        assert tensor.count_nonzero() == d


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), d=sizes, s1=sizes, s2=sizes, s3=sizes)
def test_what_holds(seed: int, d: int, s1: int, s2: int, s3: int) -> None:
    m1, m2, m3, ab = matrices(seed, d, s1, s2, s3, 2)
    a, b = ab[:, 0], ab[:, 1]
    eye = torch.eye(s2, dtype=torch.float64)
    whole = covariant_matmul(identity(d), m1, m2, m3)
    part = unfold(covariant_matmul(identity(d), torch.eye(d, dtype=torch.float64), m2, m3))
    # fact 1
    scaled = covariant_matmul(identity(d), pdiag2(a) @ m1, m2, pdiag2(b) @ m3)
    assert torch.allclose(covariant_matmul(pdiag3(a * b), m1, m2, m3), scaled)
    # fact 2
    assert torch.allclose(unfold(whole), torch.kron(m1, eye).T @ part)
    # fact 3 is an equality without its factor s_2
    collapsed = torch.kron(torch.ones(1, d, dtype=torch.float64), eye) @ part
    assert torch.allclose(collapsed, m2.T @ m3)
    # the corrected bound, and where it is attained
    assert norm(unfold(whole)) <= unfolding_bound(m1, m2, m3) * (1 + 1e-12)
    assert torch.allclose(norm(part), unfolding_bound(torch.eye(d, dtype=torch.float64), m2, m3))
    # a tensor's norm is at most that of its unfolding
    assert tensor_norm(whole, seed) <= norm(unfold(whole)) * (1 + 1e-12)


@pytest.mark.parametrize("epsilon", [1e-1, 1e-3, 1e-6])
def test_the_essential_bound_fails_by_any_factor(epsilon: float) -> None:
    """M_1 = I, M_2 = (1, 1)ᵀ, M_3 = (1, −1 + ε)ᵀ: the left side is about √2, the right side ε."""
    one = torch.eye(2, dtype=torch.float64)
    m2 = torch.ones(2, 1, dtype=torch.float64)
    m3 = torch.tensor([[1.0], [-1 + epsilon]], dtype=torch.float64)
    left = norm(unfold(covariant_matmul(identity(2), one, m2, m3)))
    assert left / essential_bound(one, m2, m3) == pytest.approx(2**0.5 / epsilon, rel=0.1)
    assert left <= unfolding_bound(one, m2, m3) * (1 + 1e-12)


def test_random_instances_violate_the_essential_bound_too() -> None:
    violations = 0
    for seed in range(400):
        m1, m2, m3 = matrices(seed, 4, 3, 1, 3)
        left = norm(unfold(covariant_matmul(identity(4), m1, m2, m3)))
        violations += bool(left > essential_bound(m1, m2, m3))
        assert left <= unfolding_bound(m1, m2, m3) * (1 + 1e-12)
    assert violations > 0


def test_the_hessian_of_a_layer_is_a_product_with_pdiag3() -> None:
    """D²[s ∘ W] = pdiag3(s''(Wx))(W, I, W): the appendix's formula for the Hessian of an activation layer."""
    (weight,) = matrices(0, 4, 3)
    x = torch.randn(3, dtype=torch.float64)
    second = torch.func.vmap(torch.func.grad(torch.func.grad(lambda z: F.softplus(z, 2.0))))(weight @ x)
    found = covariant_matmul(pdiag3(second), weight, torch.eye(4, dtype=torch.float64), weight)
    truth = torch.func.hessian(lambda v: F.softplus(weight @ v, 2.0))(x)  # (4, 3, 3)
    assert torch.allclose(found.permute(1, 0, 2), truth)

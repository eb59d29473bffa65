r"""The tensor tools of the paper's appendix, with what is true and what is not about their norms.

For a tensor A of order k and matrices M_i (d_i, s_i), A(M_1, .., M_k) multiplies each mode: it is the derivative of a
composition. The appendix bounds the norm of I(M_1, M_2, M_3), I the identity tensor of order 3, by an unfolding:

1. pdiag3(ab)(M_1, M_2, M_3) = I(pdiag2(a) M_1, M_2, pdiag2(b) M_3). True.
2. unfold(I(M_1, M_2, M_3)) = (M_1 ⊗ I)ᵀ unfold(I(I, M_2, M_3)). True.
3. ‖(1ᵀ ⊗ I) unfold(I(I, M_2, M_3))‖ ≤ ‖M_2ᵀ M_3‖ s_2. True, but idle: without s_2 it is an equality.
4. ‖unfold(I(M_1, M_2, M_3))‖ ≤ ‖M_1‖ ‖M_2ᵀ M_3‖ s_2, "the essential bound". **False**: it would need
   ‖U‖ ≤ s_2 ‖(1ᵀ ⊗ I) U‖, but summing rows can cancel. M_1 = I, M_2 = (1, 1)ᵀ, M_3 = (1, −1 + ε)ᵀ violate it by 1.4/ε.

`unfolding_bound` is what is true instead: ‖unfold(I(M_1, M_2, M_3))‖ ≤ ‖M_1‖ ‖diag(row norms of M_2) M_3‖.
Facts and counterexamples are tests.
"""

import torch
from torch import Tensor

from lowcurve.errors import UserError


def covariant_matmul(tensor: Tensor, *matrices: Tensor) -> Tensor:
    r"""Return A(M_1, .., M_k), shape (s_1, .., s_k), for A (d_1, .., d_k) and matrices M_i (d_i, s_i).

    Its entry j_1..j_k is Σ_{i_1..i_k} A_{i_1..i_k} (M_1)_{i_1 j_1} ⋯ (M_k)_{i_k j_k}. For a matrix it is M_1ᵀ A M_2:

    >>> a, m, n = torch.rand(3, 4), torch.rand(3, 2), torch.rand(4, 5)
    >>> torch.allclose(covariant_matmul(a, m, n), m.T @ a @ n)
    True
    """
    if len(matrices) != tensor.ndim:
        raise UserError(f"expected one matrix per mode, {tensor.ndim}, got {len(matrices)}")
    for matrix in matrices:  # the first mode goes to the end each time, so that all k end where they were
        tensor = torch.tensordot(tensor, matrix, dims=([0], [0]))
    return tensor


def pdiag2(values: Tensor) -> Tensor:
    """Put `values` (d,) on the diagonal of a matrix (d, d).

    >>> pdiag2(torch.tensor([1, 2])).tolist()
    [[1, 0], [0, 2]]
    """
    return torch.diag(values)


def pdiag3(values: Tensor) -> Tensor:
    """Put `values` (d,) on the diagonal of a tensor (d, d, d); pdiag3 of ones is the identity tensor I.

    >>> pdiag3(torch.tensor([1, 2])).tolist()
    [[[1, 0], [0, 0]], [[0, 0], [0, 2]]]
    """
    return torch.diag_embed(torch.diag(values))


def unfold(tensor: Tensor) -> Tensor:
    """Lay a tensor (a, b, c) out as the matrix (ab, c); its norm is never below the tensor's.

    >>> unfold(torch.zeros(2, 3, 4)).shape
    torch.Size([6, 4])
    """
    return tensor.flatten(end_dim=1)


def unfolding_bound(m1: Tensor, m2: Tensor, m3: Tensor) -> Tensor:
    r"""Return ‖M_1‖ ‖diag(r) M_3‖ ≥ ‖unfold(I(M_1, M_2, M_3))‖, with r_i = ‖row i of M_2‖; equal for M_1 = I.

    Proof: U = unfold(I(I, M_2, M_3)) has UᵀU = M_3ᵀ diag(r)² M_3, and fact 2 bounds the rest by ‖M_1 ⊗ I‖ = ‖M_1‖.
    """
    rows = m2.norm(dim=1, keepdim=True)
    return torch.linalg.matrix_norm(m1, 2) * torch.linalg.matrix_norm(rows * m3, 2)


def essential_bound(m1: Tensor, m2: Tensor, m3: Tensor) -> Tensor:
    """Return the appendix's ‖M_1‖ ‖M_2ᵀ M_3‖ s_2, which is not a bound (see above); s_2 is the width of M_2."""
    return m2.shape[1] * torch.linalg.matrix_norm(m1, 2) * torch.linalg.matrix_norm(m2.T @ m3, 2)

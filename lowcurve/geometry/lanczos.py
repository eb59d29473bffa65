"""The norms of many symmetric operators at once: batched Lanczos that stops each one on its own residual."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

# Fewer steps prove little: an early Ritz pair can look converged to an eigenvalue that is not the largest.
MIN_ITERATIONS = 5


class Operator(Protocol):
    """n symmetric maps on vectors of length d, applied together, of which some can be dropped."""

    def __call__(self, v: Tensor, /) -> Tensor:
        """Apply each map to its row of `v` (n, d)."""

    def restricted_to(self, keep: Tensor, /) -> "Operator":
        """Keep the maps that the mask `keep` (n,) selects."""


@dataclass(frozen=True)
class Extreme:
    """Norms of n operators, the residuals of their eigenpairs and the products spent; each of length n."""

    value: Tensor
    residual: Tensor
    iterations: Tensor

    @classmethod
    def unknown(cls, n: int) -> "Extreme":
        """Return n results that are not a number yet."""
        nan = torch.full((n,), torch.nan, dtype=torch.float64)
        return cls(nan, nan.clone(), torch.zeros(n, dtype=torch.long))

    def record(self, rows: Tensor, value: Tensor, residual: Tensor, iterations: int) -> None:
        """Write what is known now about some rows."""
        self.value[rows], self.residual[rows], self.iterations[rows] = value, residual, iterations


def lanczos(operator: Operator, start: Tensor, *, tol: float, max_iterations: int) -> Extreme:
    r"""Estimate ‖Hᵢ‖₂ for each symmetric Hᵢ from the Krylov space of its `start` vector, (n, d).

    With Q_m an orthonormal basis of that space and H Q_m = Q_m T_m + b_m q_{m+1} e_mᵀ, an eigenpair (θ,
    s) of the tridiagonal T_m gives a unit vector u = Q_m s with H u = θ u + r q_{m+1}, r = b_m |s_m|. So
    an eigenvalue of H lies within r of θ, and ‖H‖ ≥ ‖H u‖ = √(θ² + r²): the value returned, for the
    largest |θ|. A row is finished when r ≤ tol·value and the other end of the spectrum cannot exceed
    value·(1 + tol); finished rows leave the batch as soon as they are half of it. A row whose products
    are not finite is NaN.
    """
    n, d = start.shape
    steps = min(max_iterations, d)
    result, rows = Extreme.unknown(n), torch.arange(n)  # rows: the operators that are still in the batch
    running = torch.ones(n, dtype=torch.bool)
    basis = start.new_zeros(n, steps + 1, d)
    basis[:, 0] = F.normalize(start, dim=1)
    tridiagonal = torch.zeros(n, steps + 1, steps + 1, dtype=torch.float64)
    for k in range(steps):
        diagonal, off, basis[:, k + 1], finite = _extend(operator(basis[:, k]), basis[:, : k + 1])
        tridiagonal[:, k, k] = diagonal
        value, residual, converged = _largest(tridiagonal[:, : k + 1, : k + 1], off, tol)
        tridiagonal[:, k, k + 1] = tridiagonal[:, k + 1, k] = off
        running &= finite
        finished = running & (converged if k + 1 >= MIN_ITERATIONS else off == 0)
        if k + 1 == steps:
            finished = running
        result.record(rows[finished], value[finished], residual[finished], k + 1)
        running = running & ~finished
        if not running.any():
            break
        if 2 * int(running.sum()) <= len(running):
            operator, rows = operator.restricted_to(running), rows[running]
            basis, tridiagonal, running = basis[running], tridiagonal[running], running[running]
    return result


def _extend(product: Tensor, basis: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Orthogonalize H q_k (n, d) twice against `basis` (n, k, d); return T's entries, q_{k+1}, finiteness.

    A remainder within rounding of zero means that the space is invariant: it becomes exactly zero, as do
    rows that are not finite.
    """
    finite = torch.isfinite(product).all(dim=1)
    product = torch.where(finite[:, None], product, 0)
    size = product.norm(dim=1)
    diagonal = torch.zeros_like(size)
    for _ in range(2):
        coefficients = torch.bmm(basis, product.unsqueeze(2))  # (n, k, 1)
        product = torch.baddbmm(product.unsqueeze(2), basis.mT, coefficients, alpha=-1).squeeze(2)
        diagonal = diagonal + coefficients[:, -1, 0]
    off = product.norm(dim=1)
    off = torch.where(off > 4 * torch.finfo(off.dtype).eps * size, off, 0)
    following = product / torch.where(off > 0, off, torch.inf)[:, None]
    return diagonal.double().cpu(), off.double().cpu(), following, finite.cpu()


def _largest(tridiagonal: Tensor, off: Tensor, tol: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return √(θ² + r²), r and convergence for the eigenvalue θ of T (n, m, m) that is largest in size."""
    theta, vectors = torch.linalg.eigh(tridiagonal)
    ends = theta[:, [0, -1]].abs()  # (n, 2)
    residuals = off[:, None] * vectors[:, -1, [0, -1]].abs()
    larger = ends.argmax(dim=1, keepdim=True)
    residual = residuals.gather(1, larger).squeeze(1)
    value = torch.hypot(ends.gather(1, larger).squeeze(1), residual)
    reach = (ends + residuals).gather(1, 1 - larger).squeeze(1)
    return value, residual, (residual <= tol * value) & (reach <= (1 + tol) * value)

"""The norms of many symmetric operators at once: batched Lanczos that stops each one on its own residual."""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

# The probability, over the random start, that a row stops although its norm exceeds (1 + tol) · value.
MISS_PROBABILITY = 1e-3


class Operator(Protocol):
    """n symmetric maps on vectors of length d, applied together, of which some can be dropped."""

    def __call__(self, v: Tensor, /) -> Tensor:
        """Apply each map to its row of `v` (n, d)."""

    def restricted_to(self, keep: Tensor, /) -> "Operator":
        """Keep the maps that the mask `keep` (n,) selects."""


@dataclass(frozen=True)
class Extreme:
    """Norms of n operators, the residuals of their eigenpairs and the products spent; each of length n.

    `vector` (n, d) holds the unit vectors u with ‖Hu‖ = value, up to rounding.
    """

    value: Tensor
    residual: Tensor
    iterations: Tensor
    vector: Tensor

    @classmethod
    def unknown(cls, start: Tensor) -> "Extreme":
        """Return results that are not a number yet, one per row of `start`."""
        nan = torch.full((len(start),), torch.nan, dtype=torch.float64)
        return cls(nan, nan.clone(), torch.zeros(len(start), dtype=torch.long), torch.zeros_like(start))

    def record(self, rows: Tensor, value: Tensor, residual: Tensor, iterations: int, vector: Tensor) -> None:
        """Write what is known now about some rows."""
        self.value[rows], self.residual[rows], self.iterations[rows] = value, residual, iterations
        self.vector[rows.to(self.vector.device)] = vector


def lanczos(operator: Operator, start: Tensor, *, tol: float, max_iterations: int) -> Extreme:
    r"""Estimate ‖Hᵢ‖₂ for each symmetric Hᵢ from the Krylov space of its `start` vector, (n, d).

    With Q_m an orthonormal basis of that space and H Q_m = Q_m T_m + b_m q_{m+1} e_mᵀ, an eigenpair (θ, s) of
    the tridiagonal T_m gives a unit vector u = Q_m s with H u = θ u + r q_{m+1}, r = b_m |s_m|. So an
    eigenvalue of H lies within r of θ, and ‖H‖ ≥ ‖H u‖ = √(θ² + r²): the value returned, for the largest |θ|.

    A row is finished when r ≤ tol·value and no larger eigenvalue can well be hidden (see `_hidden_overlap`), and
    finished rows leave the batch as soon as they are half of it. So with probability 1 − `MISS_PROBABILITY`,
    value ≤ ‖H‖ ≤ (1 + tol)·value for each row that did not stop at `max_iterations`; this holds where `start` is
    any vector of norm ≤ 1 plus an independent, uniformly random unit vector. A row whose products are not finite
    is NaN.
    """
    n, d = start.shape
    steps = min(max_iterations, d)
    result, rows = Extreme.unknown(start), torch.arange(n)  # rows: the operators that are still in the batch
    running = torch.ones(n, dtype=torch.bool)
    basis = start.new_zeros(n, steps + 1, d)
    basis[:, 0] = F.normalize(start, dim=1)
    tridiagonal = torch.zeros(n, steps + 1, steps + 1, dtype=torch.float64)
    for k in range(steps):
        diagonal, off, basis[:, k + 1], finite = _extend(operator(basis[:, k]), basis[:, : k + 1])
        tridiagonal[:, k, k] = diagonal
        tridiagonal[:, k, k + 1] = tridiagonal[:, k + 1, k] = off
        value, residual, converged, weights = _largest(tridiagonal[:, : k + 2, : k + 2], d, tol)
        running &= finite
        finished = running & (converged | (k + 1 == steps))
        if finished.any():
            chosen = finished.to(basis.device)
            vector = torch.bmm(weights[finished].to(basis)[:, None], basis[chosen, : k + 1])[:, 0]
            result.record(rows[finished], value[finished], residual[finished], k + 1, vector)
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
    product, diagonal = orthogonalize(product, basis)
    off = product.norm(dim=1)
    off = torch.where(off > 4 * torch.finfo(off.dtype).eps * size, off, 0)
    following = product / torch.where(off > 0, off, torch.inf)[:, None]
    return diagonal.double().cpu(), off.double().cpu(), following, finite.cpu()


def orthogonalize(vectors: Tensor, basis: Tensor) -> tuple[Tensor, Tensor]:
    """Take from each vector (n, d) what its orthonormal `basis` (n, k, d) spans, twice, which is enough for rounding.

    Return what is left, and the coefficients of the last basis vectors (n,).
    """
    last = torch.zeros_like(vectors[:, 0])
    for _ in range(2):
        coefficients = torch.bmm(basis, vectors.unsqueeze(2))  # (n, k, 1)
        vectors = torch.baddbmm(vectors.unsqueeze(2), basis.mT, coefficients, alpha=-1).squeeze(2)
        last = last + coefficients[:, -1, 0]
    return vectors, last


def _largest(tridiagonal: Tensor, d: int, tol: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return √(θ² + r²), r, convergence and the eigenvector s for the eigenvalue θ of T_m that is largest in size.

    `tridiagonal` (n, m + 1, m + 1) holds T_m and, in its last row, b_m.
    """
    m = tridiagonal.shape[1] - 1
    off = torch.diagonal(tridiagonal, offset=1, dim1=1, dim2=2)  # (n, m): b_1 .. b_m
    theta, vectors = torch.linalg.eigh(tridiagonal[:, :m, :m])
    largest = theta.abs().argmax(dim=1, keepdim=True)
    residual = off[:, -1] * vectors[:, -1].gather(1, largest).squeeze(1).abs()
    value = torch.hypot(theta.gather(1, largest).squeeze(1), residual)
    # P(|⟨u, start⟩| ≤ t) ≤ t √(2d/π) for a fixed unit vector u; the start's norm is at most 2.
    negligible = MISS_PROBABILITY / (2 * math.sqrt(2 * d / math.pi))
    certain = _hidden_overlap(theta, off, (1 + tol) * value) <= negligible
    weights = vectors.gather(2, largest[:, None].expand(-1, m, 1)).squeeze(2)
    return value, residual, (residual <= tol * value) & certain | (off[:, -1] == 0), weights


def _hidden_overlap(theta: Tensor, off: Tensor, size: Tensor) -> Tensor:
    r"""Bound the overlap |⟨u, q₁⟩| of the start with any eigenvector u whose eigenvalue λ has |λ| ≥ `size` (n,).

    The monic polynomial p with the Ritz values θ_j as zeros satisfies ‖p(H) q₁‖ = b_1 ⋯ b_m, hence
    |⟨u, q₁⟩| · |p(λ)| ≤ b_1 ⋯ b_m, and |p(λ)| ≥ ∏_j |±size − θ_j| outside of all θ_j.
    """
    gaps = torch.stack((size[:, None] - theta, size[:, None] + theta))  # (2, n, m): the ends + and −
    return torch.exp(off.log().sum(dim=1) - gaps.log().sum(dim=2)).amax(dim=0)

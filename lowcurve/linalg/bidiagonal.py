r"""How do many maps find their singular vectors together, in a fixed number of steps that nobody looks at?

By Golub and Kahan's bidiagonalization from the last vector u and the grain: with β₁ u₁ = u + grain and v₀ = 0

.. math:: α_k v_k = W^T u_k - β_k v_{k-1}, \qquad β_{k+1} u_{k+1} = W v_k - α_k u_k.

The α's on the diagonal and β's below it are a small matrix B, whose first left singular vector p gives u = Σ pₖ uₖ;
then v = Wᵀu and u = W v, of unit length. p comes from the 2^12th power of B Bᵀ. Vectors are not orthogonalized again:
over so few steps the compiled loop, which does that, finds the same norms to four digits.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from lowcurve.compat import foreach
from lowcurve.linalg.grain import grain
from lowcurve.linalg.linear_map import LinearMap

# In which vectors are looked for. In the recorded trainings norms stay below 1.02 so; with 12 one was 1.021.
DIMENSIONS = 16
_SQUARINGS = 12
_LEAST = 1e-6  # relative to the largest number so far; what is shorter is rounding and counts as nothing


def follow_together(
    maps: Sequence[LinearMap],
    weights: list[Tensor],
    left: list[Tensor],
    right: list[Tensor],
    slopes: list[Tensor],
    *,
    least: int,
) -> None:
    """Take u, v and S of every map to those of its weight, in place."""
    with torch.autocast(weights[0].device.type, enabled=False):
        sizes = torch.stack(foreach("norm", weights, torch.inf))
        scales = torch.where(sizes > 0, 1 / sizes, torch.ones_like(sizes))  # so that squares are numbers
        weights = foreach("mul", weights, scales.unbind())
        u = _combined(*_bidiagonal(maps, weights, left, max(DIMENSIONS, least)))
        v, _ = _units(_adjoints(maps, weights, u))
        u, _ = _units(_applied(maps, weights, v))
        foreach("copy_", left, u)
        foreach("copy_", right, v)
        foreach("copy_", slopes, [m.outer(*pair) for m, *pair in zip(maps, u, v, strict=True)])


def _bidiagonal(
    maps: Sequence[LinearMap], weights: list[Tensor], left: list[Tensor], steps: int
) -> tuple[list[list[Tensor]], Tensor]:
    """Return every uₖ of every map, and all matrices B (maps, steps, steps)."""
    u, _ = _units(foreach("add", left, [grain(vector, 1.0) for vector in left]))
    basis = [u]
    diagonal: list[Tensor] = []
    below: list[Tensor] = []
    most = weights[0].new_zeros(len(weights))
    v: list[Tensor] = []
    for k in range(steps):
        image = _adjoints(maps, weights, u)
        v, alpha = _units(_without(image, below[-1], v) if below else image, most)
        most = torch.maximum(most, alpha)
        diagonal.append(alpha)
        if k + 1 < steps:
            u, beta = _units(_without(_applied(maps, weights, v), alpha, u), most)
            below.append(beta)
            basis.append(u)
    matrices = torch.diag_embed(torch.stack(diagonal, 1))
    return basis, matrices + torch.diag_embed(torch.stack(below, 1), -1)


def _combined(basis: list[list[Tensor]], matrices: Tensor) -> list[Tensor]:
    """Return Σ pₖ uₖ of every map for the first left singular vector p of its matrix."""
    gram = matrices @ matrices.mT
    for _ in range(_SQUARINGS):
        trace = gram.diagonal(dim1=1, dim2=2).sum(-1)[:, None, None]
        gram = gram / trace.clamp_min(torch.finfo(gram.dtype).tiny)
        gram = gram @ gram
    best = gram.diagonal(dim1=1, dim2=2).argmax(-1)[:, None, None]
    vectors = gram.gather(2, best.expand(-1, gram.shape[1], 1)).squeeze(2)
    total = foreach("mul", basis[0], vectors[:, 0].unbind())
    for k, u in enumerate(basis[1:], 1):
        foreach("add_", total, foreach("mul", u, vectors[:, k].unbind()))
    found, _ = _units(total)
    return found


def _units(vectors: list[Tensor], most: Tensor | None = None) -> tuple[list[Tensor], Tensor]:
    """Return vectors of unit length, and their lengths before; one that is as good as 0 becomes 0."""
    lengths = torch.stack(foreach("norm", vectors))
    if most is not None:
        lengths = torch.where(lengths > _LEAST * most, lengths, torch.zeros_like(lengths))
    inverse = torch.where(lengths > 0, 1 / lengths, torch.zeros_like(lengths))
    return list(foreach("mul", vectors, inverse.unbind())), lengths


def _without(vectors: list[Tensor], factors: Tensor, others: list[Tensor]) -> list[Tensor]:
    return list(foreach("sub", vectors, foreach("mul", others, factors.unbind())))


def _adjoints(maps: Sequence[LinearMap], weights: list[Tensor], vectors: list[Tensor]) -> list[Tensor]:
    return [m.adjoint(*given) for m, *given in zip(maps, weights, vectors, strict=True)]


def _applied(maps: Sequence[LinearMap], weights: list[Tensor], vectors: list[Tensor]) -> list[Tensor]:
    return [m.apply(*given) for m, *given in zip(maps, weights, vectors, strict=True)]

"""The largest singular value of one linear map, with its vectors: restarted Lanczos, which needs little memory."""

from dataclasses import dataclass

import torch
from torch import Tensor

from lowcurve.linalg.lanczos import orthogonalize
from lowcurve.linalg.linear_map import LinearMap

MOST = 1000  # products with WᵀW


@dataclass(frozen=True)
class SingularPair:
    """The largest singular value found, its vectors, and the residual ‖WᵀW v − σ² v‖ / σ of the pair."""

    sigma: float
    left: Tensor
    right: Tensor
    residual: float
    iterations: int


@torch.no_grad()
def largest_singular(
    linear_map: LinearMap,
    weight: Tensor,
    start: Tensor,
    tolerance: float = 1e-6,
    basis_size: int = 20,
) -> SingularPair:
    """Find σ₁(W) from below by restarted Lanczos on WᵀW with full reorthogonalisation.

    Stops when the residual is below `tolerance` σ; the error of σ is then of second order in it. σ is ‖W v‖ for
    a unit vector v, so it never exceeds the truth by more than rounding.
    """
    shape = start.shape
    scale = float(weight.abs().amax())
    weight = weight / scale if scale > 0 else weight  # so that squares of the smallest and largest weights are numbers
    v = start.flatten() / start.norm()
    size = min(basis_size, v.numel())
    iterations = 0
    while True:
        stack, stacked = _krylov(linear_map, weight, v, shape, size)
        iterations += len(stacked)
        gram = (stack @ stacked.T).double()
        coefficients = torch.linalg.eigh((gram + gram.T) / 2).eigenvectors[:, -1].to(v.dtype)
        v = coefficients @ stack
        v = v / v.norm()
        u = linear_map.apply(weight, v.view(shape))
        sigma = float(u.norm())
        if sigma == 0:
            return SingularPair(0.0, u, v.view(shape), 0.0, iterations)
        residual = float((linear_map.adjoint(weight, u).flatten() - sigma**2 * v).norm()) / sigma
        if residual <= tolerance * sigma or iterations >= MOST:
            return SingularPair(scale * sigma, u / sigma, v.view(shape), scale * residual, iterations)


def _krylov(linear_map: LinearMap, weight: Tensor, v: Tensor, shape: torch.Size, size: int) -> tuple[Tensor, Tensor]:
    """Return an orthonormal basis of v, WᵀWv, …, at most `size` vectors as rows, and the images of its vectors."""
    basis, images = [v], []
    for _ in range(size):
        image = linear_map.adjoint(weight, linear_map.apply(weight, basis[-1].view(shape))).flatten()
        images.append(image)
        following, _ = orthogonalize(image[None], torch.stack(basis)[None])
        norm = following.norm()
        if len(basis) == size or norm <= 1e-6 * images[0].norm():
            break
        basis.append(following[0] / norm)
    return torch.stack(basis), torch.stack(images)

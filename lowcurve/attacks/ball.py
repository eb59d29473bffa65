"""Where may an attack go? Into the ℓ₂ or ℓ∞ ball of radius ε around x, intersected with the box [0, 1]^d."""

import math

import torch
from torch import Tensor

from lowcurve.attacks import randomness


def column(values: Tensor, like: Tensor) -> Tensor:
    """Give the per-sample `values` the shape (N, 1, ..., 1) that broadcasts against `like`."""
    return values.view(-1, *[1] * (like.dim() - 1))


def distance(point: Tensor, x: Tensor, norm: float) -> Tensor:
    """Return ‖point - x‖ per sample, in float64: in float32 a difference of pixels alone may be wrong by 1e-7."""
    return torch.linalg.vector_norm((point.double() - x.double()).flatten(1), norm, dim=1)


def unit(vector: Tensor) -> Tensor:
    """Return v/‖v‖₂ per sample, 0 where v = 0; the largest entry is divided out first, so no square underflows."""
    tiny = torch.finfo(vector.dtype).tiny
    scaled = vector / column(vector.flatten(1).abs().amax(1).clamp_min(tiny), vector)
    return scaled / column(torch.linalg.vector_norm(scaled.flatten(1), dim=1).clamp_min(tiny), scaled)


def direction(gradient: Tensor, point: Tensor, norm: float) -> Tensor:
    """Return the unit step from `point` that gains most along `gradient` g: g/‖g‖₂, or sign(g) for ℓ∞.

    Entries that would leave the box [0, 1] are zero: clipping would waste their share of the step.
    """
    blocked = ((point <= 0) & (gradient < 0)) | ((point >= 1) & (gradient > 0))
    gradient = gradient.masked_fill(blocked, 0)
    return gradient.sign() if norm == math.inf else unit(gradient)


def project(point: Tensor, x: Tensor, eps: Tensor, norm: float) -> Tensor:
    """Bring `point` into the ball around `x` and into [0, 1]; the result is in both, however small ε is.

    For ℓ∞ this is the exact projection. For ℓ₂ the point is scaled into the ball and then clipped to the box;
    x is in the box, so clipping moves every coordinate towards x or not at all and the ball is not left. Both are
    computed in float64, and the result is rounded towards x where the nearest number lies farther away than it should.
    """
    exact, radius = x.double(), eps.double()
    delta = point.double() - exact
    if norm == math.inf:
        delta = torch.clamp(delta, -column(radius, x), column(radius, x))
    else:
        length = torch.linalg.vector_norm(delta.flatten(1), dim=1)
        delta = delta * column(torch.where(length > radius, radius / length, 1.0), x)
    nearest = (exact + delta).to(x.dtype)
    beyond = (nearest.double() - exact).abs() > delta.abs()
    return torch.where(beyond, torch.nextafter(nearest, x), nearest).clamp(0, 1)


def random_start(key: Tensor, x: Tensor, eps: Tensor, norm: float) -> Tensor:
    """Draw a start per sample: uniform on the ℓ₂ sphere, or uniform in the ℓ∞ ball, clipped to the box."""
    size = x[0].numel()
    noise = 2 * randomness.uniform(key, size) - 1 if norm == math.inf else randomness.normal(key, size)
    noise = noise.view(x.shape)
    if norm == 2:
        noise = unit(noise)
    return project(x + column(eps, x) * noise.to(x.dtype), x, eps, norm)

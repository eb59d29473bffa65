"""Where may an attack go? Into the ℓ₂ or ℓ∞ ball of radius ε around x, intersected with the box [0, 1]^d."""

import math

import torch
from torch import Tensor

from lowcurve.attacks import streams


def column(values: Tensor, like: Tensor) -> Tensor:
    """Give the per-sample `values` the shape (N, 1, ..., 1) that broadcasts against `like`."""
    return values.view(-1, *[1] * (like.dim() - 1))


def distance(point: Tensor, x: Tensor, norm: float) -> Tensor:
    """Return ‖point - x‖ per sample."""
    return torch.linalg.vector_norm((point - x).flatten(1), norm, dim=1)


def direction(gradient: Tensor, norm: float) -> Tensor:
    """Return the unit step that gains most along `gradient`: g/‖g‖₂, or sign(g) for ℓ∞; 0 where g = 0.

    The gradient is first divided by its largest entry, so that squares neither underflow nor overflow.
    """
    if norm == math.inf:
        return gradient.sign()
    tiny = torch.finfo(gradient.dtype).tiny
    scaled = gradient / column(gradient.flatten(1).abs().amax(1).clamp_min(tiny), gradient)
    return scaled / column(torch.linalg.vector_norm(scaled.flatten(1), dim=1).clamp_min(tiny), scaled)


def project(point: Tensor, x: Tensor, eps: Tensor, norm: float) -> Tensor:
    """Bring `point` into the ball around `x` and into [0, 1].

    For ℓ∞ this is the exact projection. For ℓ₂ the point is scaled into the ball and then clipped to the box;
    x is in the box, so clipping moves every coordinate towards x or not at all and the ball is not left.
    """
    radius = column(eps, x)
    if norm == math.inf:
        return torch.clamp(point, x - radius, x + radius).clamp(0, 1)
    delta = point - x
    length = torch.linalg.vector_norm(delta.flatten(1), dim=1).clamp_min(torch.finfo(x.dtype).tiny)
    return (x + delta * column((eps / length).clamp_max(1), x)).clamp(0, 1)


def random_start(key: Tensor, x: Tensor, eps: Tensor, norm: float) -> Tensor:
    """Draw a start per sample: uniform on the ℓ₂ sphere, or uniform in the ℓ∞ ball, clipped to the box."""
    size = x[0].numel()
    noise = 2 * streams.uniform(key, size) - 1 if norm == math.inf else streams.normal(key, size)
    noise = noise.view(x.shape)
    if norm == 2:
        noise = direction(noise, norm)
    return project(x + column(eps, x) * noise.to(x.dtype), x, eps, norm)

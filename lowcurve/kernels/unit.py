"""W / σ with σ = ⟨W, S⟩ for the weights of many layers at a time, and its gradient."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lowcurve.kernels import ops


def unit_weights(weights: Sequence[Tensor], slopes: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return every W / σ; σ is differentiable in W, with S held constant."""
    found: tuple[Tensor, ...] = _Units.apply(len(weights), *weights, *slopes)
    return found[:-1]


class _Units(torch.autograd.Function):
    """(W₁ … Wₙ, S₁ … Sₙ) ↦ (W₁/σ₁ … Wₙ/σₙ, σ), whose gradients are (g - ⟨g, W/σ⟩ S) / σ."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        units, sigma = ops.unit_weights(list(tensors[:count]), list(tensors[count:]))
        ctx.save_for_backward(*units, *tensors[count:], sigma)
        ctx.set_materialize_grads(False)
        return *units, sigma

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        *saved, sigma = ctx.saved_tensors
        *outer, outer_sigma = grads
        count = len(outer)
        units, slopes = saved[:count], saved[count:]
        known = [torch.zeros_like(u) if g is None else g for g, u in zip(outer, units, strict=True)]
        if torch.is_grad_enabled() or outer_sigma is not None:
            through = torch.zeros_like(sigma) if outer_sigma is None else outer_sigma
            found = [_gradient(*given) for given in zip(known, units, slopes, sigma, through, strict=True)]
        else:
            found = ops.unit_weights_gradient(known, units, slopes, sigma)
        return None, *found, *(None,) * count


def _gradient(grad: Tensor, unit: Tensor, slope: Tensor, sigma: Tensor, outer_sigma: Tensor) -> Tensor:
    """Return the gradient in W in operations that can be differentiated again, in σ too."""
    return (grad - (grad * unit).sum() * slope) / sigma + outer_sigma * slope

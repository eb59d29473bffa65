"""W / σ with σ = ⟨W, S⟩ for many layers in plain PyTorch, and its gradient."""

from collections.abc import Sequence

import torch
from torch import Tensor


def unit_weights(weights: Sequence[Tensor], slopes: Sequence[Tensor]) -> tuple[list[Tensor], Tensor]:
    """Return every W / σ, and all σ = ⟨W, S⟩, or 1 where that is below the smallest normal number."""
    products = [(w.to(s.dtype) * s).sum() for w, s in zip(weights, slopes, strict=True)]
    sigma = torch.stack(products)
    sigma = torch.where(sigma < torch.finfo(sigma.dtype).tiny, torch.ones_like(sigma), sigma)
    return [w / s for w, s in zip(weights, sigma.unbind(), strict=True)], sigma


def unit_weights_gradient(
    grads: Sequence[Tensor], units: Sequence[Tensor], slopes: Sequence[Tensor], sigma: Tensor
) -> list[Tensor]:
    """Return every (g - ⟨g, Y⟩ S) / σ for Y = W / σ, laid out as Y is."""
    found = []
    for grad, unit, slope, value in zip(grads, units, slopes, sigma.unbind(), strict=True):
        if grad.stride() != unit.stride():
            grad = torch.empty_like(unit).copy_(grad)
        inner = (grad * unit).sum()  # not `dot`, whose last bit depends on where in memory its arguments are
        found.append(torch.addcmul(grad, slope, inner, value=-1) / value)
    return found

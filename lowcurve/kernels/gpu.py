"""The operators on GPUs (CUDA and ROCm): Triton kernels for half and single precision, plain PyTorch for the rest.

Triton comes with PyTorch's builds for GPUs. It is imported when the first tensor on a GPU needs it.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lowcurve.kernels import reference

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def softplus(x: Tensor, log_beta: Tensor, shift: float) -> Tensor:
    """Return s₀(x; β) + shift."""
    if not _kernels_take(x):
        return reference.softplus(x, log_beta, shift)
    from lowcurve.kernels.triton import softplus as kernels

    return kernels.softplus(x, log_beta.to(x.device), shift)


def softplus_gradient(
    grad: Tensor, y: Tensor, log_beta: Tensor, shift: float, with_beta: bool
) -> tuple[Tensor, Tensor | None]:
    """Return g σ and, where wanted, Σ g (log 2 - H(σ)) / β, the gradient in log β."""
    if not _kernels_take(grad, y):
        return reference.softplus_gradient(grad, y, log_beta, shift, with_beta)
    from lowcurve.kernels.triton import softplus as kernels

    return kernels.softplus_gradient(grad, y, log_beta.to(y.device), shift, with_beta)


def softplus_second(
    outer: Tensor, grad: Tensor, y: Tensor, log_beta: Tensor, shift: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return h σ, h g β (1 - σ), and the sum of the latter times y - shift, for h the gradient of g σ."""
    if not _kernels_take(outer, grad, y):
        return reference.softplus_second(outer, grad, y, log_beta, shift)
    from lowcurve.kernels.triton import softplus as kernels

    return kernels.softplus_second(outer, grad, y, log_beta.to(y.device), shift)


def norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    other: Tensor | None,
    log_beta: Tensor | None,
    factor: float,
    shift: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return y = w x̂ + b, and μ and r; with a β instead y = s₀(factor (w x̂ + b + other); β) + shift."""
    given = (x, weight, bias, running_mean, running_var)
    if not _kernels_take(*given, other) or x.numel() == 0:
        return reference.norm(*given, momentum, eps, other, log_beta, factor, shift)
    from lowcurve.kernels.triton import norm as kernels

    found = kernels.norm(*given, momentum, eps, other, _activation(x, log_beta, factor, shift))
    torch.autograd.graph.increment_version([t for t in (running_mean, running_var) if t is not None])
    return found


def norm_gradient(
    grad: Tensor,
    y: Tensor | None,
    x: Tensor,
    weight: Tensor | None,
    mean: Tensor,
    invstd: Tensor,
    eps: float,
    log_beta: Tensor | None,
    factor: float,
    shift: float,
    with_other: bool,
    with_beta: bool,
) -> tuple[Tensor, Tensor | None, Tensor, Tensor, Tensor | None]:
    """Return the gradients in x, other, weight, bias and log β; those in weight and bias even where there are none."""
    given = (grad, y, x, weight, mean, invstd)
    if not _kernels_take(*given) or x.numel() == 0:
        return reference.norm_gradient(*given, eps, log_beta, factor, shift, with_other, with_beta)
    from lowcurve.kernels.triton import norm as kernels

    return kernels.norm_gradient(*given, _activation(x, log_beta, factor, shift), with_other, with_beta)


def norm_second(
    outer: Tensor,
    outer_other: Tensor | None,
    grad: Tensor,
    y: Tensor | None,
    x: Tensor,
    weight: Tensor | None,
    mean: Tensor,
    invstd: Tensor,
    in_weight: Tensor,
    in_bias: Tensor,
    eps: float,
    log_beta: Tensor | None,
    factor: float,
    shift: float,
) -> tuple[Tensor, Tensor | None, Tensor, Tensor, Tensor | None]:
    """Return the gradients in g, y, x, weight and log β of ⟨outer, in_x⟩ + ⟨outer_other, in_other⟩."""
    given = (outer, outer_other, grad, y, x, weight, mean, invstd, in_weight, in_bias)
    if not _kernels_take(*given) or x.numel() == 0:
        return reference.norm_second(*given, eps, log_beta, factor, shift)
    from lowcurve.kernels.triton import norm as kernels

    return kernels.norm_second(*given, _activation(x, log_beta, factor, shift))


def unit_weights(weights: Sequence[Tensor], slopes: Sequence[Tensor]) -> tuple[list[Tensor], Tensor]:
    """Return every W / σ, and all σ = ⟨W, S⟩, or 1 where that is below the smallest normal number."""
    if not _single(*weights, *slopes):
        return reference.unit_weights(weights, slopes)
    from lowcurve.kernels.triton import unit as kernels

    return kernels.unit_weights(weights, slopes)


def unit_weights_gradient(
    grads: Sequence[Tensor], units: Sequence[Tensor], slopes: Sequence[Tensor], sigma: Tensor
) -> list[Tensor]:
    """Return every (g - ⟨g, Y⟩ S) / σ for Y = W / σ."""
    if not _single(*grads, *units, *slopes):
        return reference.unit_weights_gradient(grads, units, slopes, sigma)
    from lowcurve.kernels.triton import unit as kernels

    return kernels.unit_weights_gradient(grads, units, slopes, sigma)


def _activation(x: Tensor, log_beta: Tensor | None, factor: float, shift: float) -> Any:
    from lowcurve.kernels.triton.norm import Activation

    return None if log_beta is None else Activation(log_beta.to(x.device), factor, shift)


def _kernels_take(*tensors: Tensor | None) -> bool:
    return all(t is None or t.dtype in _DTYPES for t in tensors)


def _single(*tensors: Tensor) -> bool:
    return all(t.dtype is torch.float32 and t.is_contiguous() for t in tensors)

"""The operators on CPUs: C loops for float32, compiled at installation; plain PyTorch for everything else.

Each function asks itself whether its loop can take the tensors as they are. A tensor of channels is row-major or
channels_last; others are for PyTorch.
"""

import math
import sys
from collections.abc import Sequence
from typing import overload

import torch
from torch import Tensor

from lowcurve.kernels import reference
from lowcurve.kernels.cpu.library import BLOCK, COLUMNS, LIBRARY, PARTS, ROW_MAJOR_PARTS, call
from lowcurve.kernels.engine import LARGEST_EXPONENT


def softplus(x: Tensor, log_beta: Tensor, shift: float) -> Tensor:
    """Return s₀(x; β) + shift."""
    if not _takes(x):
        return reference.softplus(x, log_beta, shift)
    x = _dense(x)
    y = torch.empty_like(x)
    call("lowcurve_value", x.numel(), x, sharpness(log_beta), shift, y)
    return y


def softplus_gradient(
    grad: Tensor, y: Tensor, log_beta: Tensor, shift: float, with_beta: bool
) -> tuple[Tensor, Tensor | None]:
    """Return g σ and, where wanted, Σ g (log 2 - H(σ)) / β, the gradient in log β."""
    if not _takes(grad, y):
        return reference.softplus_gradient(grad, y, log_beta, shift, with_beta)
    y, grad = _alike(y, grad)
    beta, in_x = sharpness(log_beta), torch.empty_like(y)
    if not with_beta:
        call("lowcurve_gradient", y.numel(), grad, y, beta, shift, in_x)
        return in_x, None
    total = call("lowcurve_gradients", y.numel(), grad, y, beta, shift, in_x, _partial(y))
    return in_x, log_beta.new_tensor(total / beta)


def softplus_second(
    outer: Tensor, grad: Tensor, y: Tensor, log_beta: Tensor, shift: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return h σ, h g β (1 - σ), and the sum of the latter times y - shift, for h the gradient of g σ."""
    if not _takes(outer, grad, y):
        return reference.softplus_second(outer, grad, y, log_beta, shift)
    y, outer, grad = _alike(y, outer, grad)
    in_grad, in_y = torch.empty_like(y), torch.empty_like(y)
    found = (in_grad, in_y, _partial(y))
    total = call("lowcurve_second", y.numel(), outer, grad, y, sharpness(log_beta), shift, *found)
    return in_grad, in_y, log_beta.new_tensor(total)


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
    moved = running_mean, running_var
    given = (x, weight, bias, *moved, momentum, eps)
    shape = _shape(x)
    packed = all(t is None or t.is_contiguous() for t in moved)
    if shape is None or not packed or not _takes(x, weight, bias, *moved, other):
        return reference.norm(*given, other, log_beta, factor, shift)
    y, mean = torch.empty_like(x), x.new_empty(x.shape[1])
    invstd = torch.empty_like(mean)
    given = (x, _packed(weight), _packed(bias), *moved, momentum, eps)
    found = (y, mean, invstd, _sums(x))
    if log_beta is None:
        call("lowcurve_norm", *shape, *given, *found)
    else:
        activation = (factor, sharpness(log_beta), shift)
        call("lowcurve_norm_softplus", *shape, *given, _like(x, other), *activation, *found)
    torch.autograd.graph.increment_version([t for t in moved if t is not None])
    return y, mean, invstd


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
    shape = _shape(x)
    if shape is None or not _takes(grad, y, x, weight, mean, invstd):
        activation = (log_beta, factor, shift)
        return reference.norm_gradient(grad, y, x, weight, mean, invstd, eps, *activation, with_other, with_beta)
    in_x, in_weight, in_bias = torch.empty_like(x), torch.empty_like(mean), torch.empty_like(mean)
    given = (x, *map(_packed, (weight, mean, invstd)))
    grad = _like(x, grad)
    if log_beta is None:
        call("lowcurve_norm_gradient", *shape, grad, *given, in_x, in_weight, in_bias, _sums(x))
        return in_x, grad.clone() if with_other else None, in_weight, in_bias, None
    in_other = torch.empty_like(x) if with_other else None
    deficits, beta = torch.empty_like(mean) if with_beta else None, sharpness(log_beta)
    found = (in_x, in_other, in_weight, in_bias, deficits, _sums(x))
    call("lowcurve_norm_softplus_gradient", *shape, grad, _like(x, y), *given, factor, beta, shift, *found)
    return in_x, in_other, in_weight, in_bias, None if deficits is None else deficits.sum() / beta


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
    shape = _shape(x)
    first = (mean, invstd, in_weight, in_bias)
    if shape is None or not _takes(outer, outer_other, grad, y, x, weight, *first):
        activation = (log_beta, factor, shift)
        return reference.norm_second(outer, outer_other, grad, y, x, weight, *first, eps, *activation)
    in_grad, in_x, in_scale = torch.empty_like(x), torch.empty_like(x), torch.empty_like(mean)
    given = (x, *map(_packed, (weight, *first)))
    outer, grad = _like(x, outer), _like(x, grad)
    if log_beta is None:
        call("lowcurve_norm_second", *shape, outer, grad, *given, in_grad, in_x, in_scale, _sums(x))
        return in_grad, None, in_x, in_scale, None
    in_y, in_beta = torch.empty_like(x), x.new_zeros(_parts(shape) * x.shape[1])
    tensors = (outer, _like(x, outer_other), grad, _like(x, y), *given)
    found = (in_grad, in_y, in_x, in_scale, in_beta, _sums(x))
    call("lowcurve_norm_softplus_second", *shape, *tensors, factor, sharpness(log_beta), shift, *found)
    return in_grad, in_y, in_x, in_scale, in_beta.sum()


def unit_weights(weights: Sequence[Tensor], slopes: Sequence[Tensor]) -> tuple[list[Tensor], Tensor]:
    """Return every W / σ, and all σ = ⟨W, S⟩, or 1 where that is below the smallest normal number."""
    if not _takes(*weights, *slopes):
        return reference.unit_weights(weights, slopes)
    units, sigmas = [], []
    for weight, slope in zip(weights, slopes, strict=True):
        weight, slope = _alike(weight, slope)
        units.append(torch.empty_like(weight))
        sigmas.append(call("lowcurve_unit", weight.numel(), weight, slope, units[-1], _partial(weight)))
    return units, weights[0].new_tensor(sigmas)


def unit_weights_gradient(
    grads: Sequence[Tensor], units: Sequence[Tensor], slopes: Sequence[Tensor], sigma: Tensor
) -> list[Tensor]:
    """Return every (g - ⟨g, Y⟩ S) / σ for Y = W / σ."""
    if not _takes(*grads, *units, *slopes):
        return reference.unit_weights_gradient(grads, units, slopes, sigma)
    found = []
    for given, value in zip(zip(units, grads, slopes, strict=True), sigma.tolist(), strict=True):
        unit, grad, slope = _alike(*given)
        found.append(torch.empty_like(unit))
        call("lowcurve_unit_gradient", unit.numel(), grad, unit, slope, value, found[-1], _partial(unit))
    return found


def sharpness(log_beta: Tensor) -> float:
    """Return β as a number, without an operation of PyTorch; above e⁸⁸, near float32's largest, all count as that.

    It is never quite 0, by which a diverging training would divide.
    """
    return max(math.exp(min(float(log_beta), LARGEST_EXPONENT)), sys.float_info.min)


def _takes(*tensors: Tensor | None) -> bool:
    """Whether the loops were compiled and all tensors are float32 numbers in memory, as they are."""
    return LIBRARY is not None and all(
        t is None or (t.dtype is torch.float32 and t.layout is torch.strided and not t.is_neg()) for t in tensors
    )


def _shape(x: Tensor) -> tuple[int, int, int, int] | None:
    """Return samples, channels, values per channel of a sample, and whether channels alternate; None for other layouts.

    For channels_last memory a sample is as many neighboring positions as fit in the loops' columns.
    """
    if x.numel() == 0 or x.dim() < 2:
        return None
    n, channels = x.shape[:2]
    length = math.prod(x.shape[2:])
    if x.is_contiguous():
        return n, channels, length, 0
    if x.dim() != 4 or not x.is_contiguous(memory_format=torch.channels_last):
        return None
    positions = n * length
    together = math.gcd(positions, 1 << max(0, COLUMNS // channels).bit_length() - 1) if channels <= COLUMNS else 1
    return positions // together, channels, together, 1


def _parts(shape: tuple[int, int, int, int]) -> int:
    return PARTS if shape[3] else ROW_MAJOR_PARTS


def _sums(x: Tensor) -> Tensor:
    """Room for three kinds of sums over each part of each channel."""
    return torch.empty(3 * PARTS * x.shape[1], dtype=torch.float64)


def _packed(tensor: Tensor | None) -> Tensor | None:
    return tensor if tensor is None or tensor.is_contiguous() else tensor.contiguous()


def _partial(y: Tensor) -> Tensor:
    return y.new_empty(y.numel() // BLOCK + 1)


def _dense(x: Tensor) -> Tensor:
    """Return x itself where its elements fill one stretch of memory in any order, else a contiguous copy."""
    return x if x.is_contiguous() or torch.empty_like(x).stride() == x.stride() else x.contiguous()


def _alike(y: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    """Give all tensors y's order in memory."""
    y = _dense(y)
    return y, *(_like(y, t) for t in others)


@overload
def _like(y: Tensor, tensor: Tensor) -> Tensor: ...
@overload
def _like(y: Tensor, tensor: Tensor | None) -> Tensor | None: ...
def _like(y: Tensor, tensor: Tensor | None) -> Tensor | None:
    """Return a tensor in y's order in memory."""
    return tensor if tensor is None or tensor.stride() == y.stride() else torch.empty_like(y).copy_(tensor)

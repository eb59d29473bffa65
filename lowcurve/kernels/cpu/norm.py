"""Training-mode batch norm on CPUs, alone or in one pass with a residual sum and a softplus."""

from typing import Any

import torch

from lowcurve.kernels import reference
from lowcurve.kernels.arguments import Gradients, Norm, NormGradient, Norms, NormSecond, Seconds
from lowcurve.kernels.cpu.library import call
from lowcurve.kernels.cpu.tensors import like, packed, room_for_sums, shape_of, sharpness, takes


def norm(*given: Any) -> Norms:
    """Return y = w x̂ + b, and μ and r; with a β instead y = s₀(factor (w x̂ + b + other); β) + shift."""
    a = Norm(*given)
    moved = [t for t in (a.running_mean, a.running_var) if t is not None]
    shape = shape_of(a.x)
    if shape is None or not all(t.is_contiguous() for t in moved) or not takes(a.x, a.weight, a.bias, *moved, a.other):
        return reference.norm(*given)
    y, mean = torch.empty_like(a.x), a.x.new_empty(a.x.shape[1])
    invstd = torch.empty_like(mean)
    tensors = (a.x, packed(a.weight), packed(a.bias), a.running_mean, a.running_var, a.momentum, a.eps)
    found = (y, mean, invstd, room_for_sums(a.x))
    if a.log_beta is None:
        call("lowcurve_norm", *shape, *tensors, *found)
    else:
        activation = (a.factor, sharpness(a.log_beta), a.shift)
        call("lowcurve_norm_softplus", *shape, *tensors, like(a.x, a.other), *activation, *found)
    torch.autograd.graph.increment_version(moved)
    return y, mean, invstd


def norm_gradient(*given: Any) -> Gradients:
    """Return the gradients in x, other, weight, bias and log β; those in weight and bias even where there are none."""
    a = NormGradient(*given)
    shape = shape_of(a.x)
    if shape is None or not takes(a.grad, a.y, a.x, a.weight, a.mean, a.invstd, a.log_beta):
        return reference.norm_gradient(*given)
    in_x, in_weight, in_bias = torch.empty_like(a.x), torch.empty_like(a.mean), torch.empty_like(a.mean)
    tensors = (a.x, *map(packed, (a.weight, a.mean, a.invstd)))
    grad = like(a.x, a.grad)
    if a.log_beta is None:
        call("lowcurve_norm_gradient", *shape, grad, *tensors, in_x, in_weight, in_bias, room_for_sums(a.x))
        return in_x, grad.clone() if a.with_other else None, in_weight, in_bias, None
    in_other = torch.empty_like(a.x) if a.with_other else None
    in_beta = torch.empty_like(a.log_beta) if a.with_beta else None
    found = (in_x, in_other, in_weight, in_bias, in_beta, room_for_sums(a.x))
    activation = (a.factor, sharpness(a.log_beta), a.shift)
    call("lowcurve_norm_softplus_gradient", *shape, grad, like(a.x, a.y), *tensors, *activation, *found)
    return in_x, in_other, in_weight, in_bias, in_beta


def norm_second(*given: Any) -> Seconds:
    """Return the gradients in g, y, x, weight and log β of ⟨outer, in_x⟩ + ⟨outer_other, in_other⟩."""
    a = NormSecond(*given)
    shape = shape_of(a.x)
    first = (a.mean, a.invstd, a.in_weight, a.in_bias)
    if shape is None or not takes(a.outer, a.outer_other, a.grad, a.y, a.x, a.weight, a.log_beta, *first):
        return reference.norm_second(*given)
    in_grad, in_x, in_scale = torch.empty_like(a.x), torch.empty_like(a.x), torch.empty_like(a.mean)
    tensors = (a.x, *map(packed, (a.weight, *first)))
    outer, grad = like(a.x, a.outer), like(a.x, a.grad)
    if a.log_beta is None:
        call("lowcurve_norm_second", *shape, outer, grad, *tensors, in_grad, in_x, in_scale, room_for_sums(a.x))
        return in_grad, None, in_x, in_scale, None
    in_y, in_beta = torch.empty_like(a.x), torch.empty_like(a.log_beta)
    tensors = (outer, like(a.x, a.outer_other), grad, like(a.x, a.y), *tensors)
    found = (in_grad, in_y, in_x, in_scale, in_beta, room_for_sums(a.x))
    activation = (a.factor, sharpness(a.log_beta), a.shift)
    call("lowcurve_norm_softplus_second", *shape, *tensors, *activation, *found)
    return in_grad, in_y, in_x, in_scale, in_beta

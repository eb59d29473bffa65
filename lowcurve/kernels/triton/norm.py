"""How are the kernels of training-mode batch norm launched? Two each: sums over channels, then results."""

from typing import Any

import torch
from torch import Tensor

from lowcurve.kernels.arguments import Gradients, Norm, NormGradient, Norms, NormSecond, Seconds
from lowcurve.kernels.triton.layout import Layout, alike, log_beta_on
from lowcurve.kernels.triton.norm_gradient import gradient_kernel, gradient_sums_kernel
from lowcurve.kernels.triton.norm_second import second_kernel, second_sums_kernel
from lowcurve.kernels.triton.norm_value import statistics_kernel, value_kernel


def norm(*given: Any) -> Norms:
    """Return y = w x̂ + b, or its activation, and μ and r = 1/std of each channel; move the running statistics."""
    a = Norm(*given)
    x, other = alike(a.x, a.other)
    layout = Layout.of(x)
    y = torch.empty_like(x)
    mean, invstd = (x.new_empty(x.shape[1], dtype=torch.float32) for _ in range(2))
    sums = _sums(layout, x, 2)
    statistics_kernel[layout.grid](x, sums, *layout.numbers, layout.per_part, **layout.tile)
    tensors = (x, a.weight, a.bias, other, log_beta_on(x, a.log_beta), y, mean, invstd, a.running_mean, a.running_var)
    value_kernel[layout.grid](
        *(x if t is None else t for t in (*tensors, sums)),
        *(a.momentum, a.eps, a.factor, a.shift, *layout.numbers, layout.per_part),
        **layout.tile,
        WEIGHT=a.weight is not None,
        BIAS=a.bias is not None,
        OTHER=other is not None,
        ACTIVATE=a.log_beta is not None,
        MEAN=a.running_mean is not None,
        VAR=a.running_var is not None,
    )
    moved = [t for t in (a.running_mean, a.running_var) if t is not None]
    torch.autograd.graph.increment_version(moved)
    return y, mean, invstd


def norm_gradient(*given: Any) -> Gradients:
    """Return the gradients in x, other, weight, bias and log β, the third and fourth even where there are none."""
    a = NormGradient(*given)
    x, grad, y = alike(a.x, a.grad, a.y)
    layout, log_beta = Layout.of(x), log_beta_on(x, a.log_beta)
    sums = _sums(layout, x, 3)
    in_x, in_other = torch.empty_like(x), torch.empty_like(x) if a.with_other else None
    in_weight, in_bias = torch.empty_like(a.mean), torch.empty_like(a.mean)
    in_beta = None if log_beta is None or not a.with_beta else torch.empty_like(log_beta)
    flags: dict[str, Any] = {"ACTIVATE": log_beta is not None, "WITH_BETA": in_beta is not None, **layout.tile}
    numbers = (a.factor, a.shift, *layout.numbers, layout.per_part)
    gradient_sums_kernel[layout.grid](
        *(x if t is None else t for t in (grad, y, x, log_beta, a.mean, sums)), *numbers, **flags
    )
    found = (in_x, in_other, in_weight, in_bias, in_beta, sums)
    gradient_kernel[layout.grid](
        *(x if t is None else t for t in (grad, y, x, a.weight, log_beta, a.mean, a.invstd, *found)),
        *numbers,
        **flags,
        WEIGHT=a.weight is not None,
        OTHER=a.with_other,
    )
    return in_x, in_other, in_weight, in_bias, in_beta


def norm_second(*given: Any) -> Seconds:
    """Return the gradients in g, y, x, weight and log β of ⟨outer, in_x⟩ + ⟨outer_other, in_other⟩."""
    a = NormSecond(*given)
    x, outer, outer_other, grad, y = alike(a.x, a.outer, a.outer_other, a.grad, a.y)
    layout, log_beta = Layout.of(x), log_beta_on(x, a.log_beta)
    sums = _sums(layout, x, 3 if log_beta is None else 7)
    in_grad, in_x, in_y = torch.empty_like(grad), torch.empty_like(x), None if y is None else torch.empty_like(y)
    in_scale, in_beta = torch.empty_like(a.mean), None if log_beta is None else torch.empty_like(log_beta)
    flags: dict[str, Any] = {"OTHER": outer_other is not None, "ACTIVATE": log_beta is not None, **layout.tile}
    numbers = (a.factor, a.shift, *layout.numbers, layout.per_part)
    tensors: tuple[Tensor | None, ...] = (outer, outer_other, grad, y, x, log_beta, a.mean, a.in_bias, sums)
    second_sums_kernel[layout.grid](*(x if t is None else t for t in tensors), *numbers, **flags)
    tensors = (outer, outer_other, grad, y, x, a.weight, log_beta, a.mean, a.invstd, a.in_weight, a.in_bias)
    found = (in_grad, in_y, in_x, in_scale, in_beta, sums)
    second_kernel[layout.grid](
        *(x if t is None else t for t in (*tensors, *found)), *numbers, **flags, WEIGHT=a.weight is not None
    )
    return in_grad, in_y, in_x, in_scale, in_beta


def _sums(layout: Layout, x: Tensor, kinds: int) -> Tensor:
    return x.new_empty(kinds * layout.tile["PARTS"] * x.shape[1], dtype=torch.float32)

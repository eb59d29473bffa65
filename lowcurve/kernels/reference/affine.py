r"""Eval-mode batch norm in plain PyTorch, alone or with a residual sum and a softplus, to second order.

The running statistics make it y = s₀(factor (a x + c + other); β) + shift with a = w / √(var + ε) and c = b - a mean
per channel, or y = a x + c. For g the gradient of y, those in x and other are a t and t with t = factor g σ.
"""

from typing import Any

import torch
from torch import Tensor

from lowcurve.kernels.arguments import Affine, AffineGradient, AffineSecond
from lowcurve.kernels.reference.norm import gradient_through
from lowcurve.kernels.reference.softplus import softplus, softplus_second, widen


def affine(*given: Any) -> Tensor:
    """Return a x + c; with a β instead s₀(factor (a x + c + other); β) + shift."""
    a = Affine(*given)
    y = normalized(a)
    y = y if a.other is None else y + a.other
    return y if a.log_beta is None else softplus(a.factor * y, a.log_beta, a.shift)


def affine_gradient(*given: Any) -> tuple[Tensor, Tensor | None]:
    """Return the gradients in x and, where wanted, in other."""
    a = AffineGradient(*given)
    through, _ = gradient_through(a, False)
    in_x = (through * slope_of(a, through)).to(through.dtype)
    return in_x, None if not a.with_other else through.clone() if through is a.grad else through


def affine_second(*given: Any) -> tuple[Tensor, Tensor | None]:
    """Return the gradients in g and y of ⟨outer, in_x⟩ + ⟨outer_other, in_other⟩."""
    a = AffineSecond(*given)
    h = inner_gradient(a)
    if a.log_beta is None or a.y is None:
        return h, None
    in_grad, in_y, _ = softplus_second(a.factor * h, a.grad, a.y, a.log_beta, a.shift)
    return in_grad, in_y


def normalized(a: Affine) -> Tensor:
    """Return a x + c, one multiply-add per value."""
    slope = slope_of(a, a.x)
    offset = -a.mean.view(slope.shape) * slope
    offset = offset if a.bias is None else offset + a.bias.view(slope.shape)
    return torch.addcmul(offset, widen(a.x), slope).to(a.x.dtype)


def inner_gradient(a: AffineSecond) -> Tensor:
    """Return a outer + outer_other, the gradient in t."""
    h = (a.outer * slope_of(a, a.outer)).to(a.outer.dtype)
    return h if a.outer_other is None else h + a.outer_other


def slope_of(a: Affine | AffineGradient | AffineSecond, like: Tensor) -> Tensor:
    """Return a = w / √(var + ε), shaped to multiply the channels of `like`."""
    gain = (a.var + a.eps).rsqrt()
    gain = gain if a.weight is None else gain * a.weight
    return gain.view(1, -1, *(1,) * (like.dim() - 2))

"""Softplus on CPUs, and eval-mode batch norm, which is a multiply-add and then softplus."""

from typing import Any

import torch
from torch import Tensor

from lowcurve.kernels import reference
from lowcurve.kernels.arguments import Affine, AffineGradient, AffineSecond
from lowcurve.kernels.cpu.library import call
from lowcurve.kernels.cpu.tensors import alike, dense, room_for_blocks, sharpness, takes
from lowcurve.kernels.reference.affine import inner_gradient, normalized, slope_of


def softplus(x: Tensor, log_beta: Tensor, shift: float) -> Tensor:
    """Return s₀(x; β) + shift."""
    if not takes(x):
        return reference.softplus(x, log_beta, shift)
    x = dense(x)
    y = torch.empty_like(x)
    call("lowcurve_value", x.numel(), x, sharpness(log_beta), shift, y)
    return y


def softplus_gradient(
    grad: Tensor, y: Tensor, log_beta: Tensor, shift: float, with_beta: bool
) -> tuple[Tensor, Tensor | None]:
    """Return g σ and, where wanted, Σ g (log 2 - H(σ)) / β, the gradient in log β."""
    if not takes(grad, y):
        return reference.softplus_gradient(grad, y, log_beta, shift, with_beta)
    y, grad = alike(y, grad)
    beta, in_x = sharpness(log_beta), torch.empty_like(y)
    if not with_beta:
        call("lowcurve_gradient", y.numel(), grad, y, beta, shift, in_x)
        return in_x, None
    total = call("lowcurve_gradients", y.numel(), grad, y, beta, shift, in_x, room_for_blocks(y))
    return in_x, log_beta.new_tensor(total / beta)


def softplus_second(
    outer: Tensor, grad: Tensor, y: Tensor, log_beta: Tensor, shift: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return h σ, h g β (1 - σ), and the sum of the latter times y - shift, for h the gradient of g σ."""
    if not takes(outer, grad, y):
        return reference.softplus_second(outer, grad, y, log_beta, shift)
    y, outer, grad = alike(y, outer, grad)
    in_grad, in_y = torch.empty_like(y), torch.empty_like(y)
    found = (in_grad, in_y, room_for_blocks(y))
    total = call("lowcurve_second", y.numel(), outer, grad, y, sharpness(log_beta), shift, *found)
    return in_grad, in_y, log_beta.new_tensor(total)


def affine(*given: Any) -> Tensor:
    """Return a x + c; with a β instead s₀(factor (a x + c + other); β) + shift."""
    a = Affine(*given)
    if a.log_beta is None or not takes(a.x, a.other):
        return reference.affine(*given)
    y = normalized(a)
    y = y if a.other is None else y.add_(a.other)
    return softplus(y if a.factor == 1 else y.mul_(a.factor), a.log_beta, a.shift)


def affine_gradient(*given: Any) -> tuple[Tensor, Tensor | None]:
    """Return the gradients in x and, where wanted, in other."""
    a = AffineGradient(*given)
    if a.log_beta is None or a.y is None or not takes(a.grad, a.y):
        return reference.affine_gradient(*given)
    through, _ = softplus_gradient(a.grad, a.y, a.log_beta, a.shift, False)
    through = through if a.factor == 1 else through.mul_(a.factor)
    slope = slope_of(a, through)
    return (through * slope, through) if a.with_other else (through.mul_(slope), None)


def affine_second(*given: Any) -> tuple[Tensor, Tensor | None]:
    """Return the gradients in g and y of ⟨outer, in_x⟩ + ⟨outer_other, in_other⟩."""
    a = AffineSecond(*given)
    if a.log_beta is None or a.y is None:
        return reference.affine_second(*given)
    h = inner_gradient(a)
    in_grad, in_y, _ = softplus_second(h if a.factor == 1 else a.factor * h, a.grad, a.y, a.log_beta, a.shift)
    return in_grad, in_y

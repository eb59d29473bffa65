"""A convolution whose gradient is cheap to differentiate again.

PyTorch's own double backward computes the weight's part as a convolution with an image-sized kernel: measured on a CPU,
3 times what the formulas below need. Values and first gradients are PyTorch's own.
"""

from typing import Any

import torch
from torch import Tensor

from lowcurve.kernels.engine import gradient_is_wanted

_aten = torch.ops.aten

# Stride, padding, dilation (one number per spatial dimension each) and groups.
ConvolutionSettings = tuple[list[int], list[int], list[int], int]


def convolution(x: Tensor, weight: Tensor, settings: ConvolutionSettings) -> Tensor:
    """Return W * x without bias, differentiable to any order."""
    return _Convolution.apply(x, weight, settings)


class _Convolution(torch.autograd.Function):
    """y = W * x without bias."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, settings: Any) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.settings = settings
        stride, padding, dilation, groups = settings
        none = [0] * len(stride)
        return _aten.convolution(x, weight, None, stride, padding, dilation, False, none, groups)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        return *_ConvolutionGradient.apply(
            grad, x, weight, ctx.settings, gradient_is_wanted(ctx, 0), gradient_is_wanted(ctx, 1)
        ), None


class _ConvolutionGradient(torch.autograd.Function):
    """(g, x, W) ↦ (Wᵀ * g, x ⋆ g): bilinear in (g, W) and (x, g), so that its derivatives are convolutions again."""

    @staticmethod
    def forward(
        ctx: Any, grad: Tensor, x: Tensor, weight: Tensor, settings: Any, with_x: bool, with_weight: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        ctx.save_for_backward(grad, x, weight)
        ctx.set_materialize_grads(False)
        ctx.settings = settings
        stride, padding, dilation, groups = settings
        none = [0] * len(stride)
        wanted = [with_x, with_weight, False]
        in_x, in_weight, _ = _aten.convolution_backward(
            grad, x, weight, None, stride, padding, dilation, False, none, groups, wanted
        )
        return in_x, in_weight

    @staticmethod
    def backward(ctx: Any, outer_x: Tensor | None, outer_weight: Tensor | None) -> tuple[Tensor | None, ...]:
        grad, x, weight = ctx.saved_tensors
        settings = ctx.settings
        in_grad = in_x = in_weight = None
        if outer_x is not None:
            if gradient_is_wanted(ctx, 0):
                in_grad = _Convolution.apply(outer_x, weight, settings)
            if gradient_is_wanted(ctx, 2):
                in_weight = _ConvolutionGradient.apply(grad, outer_x, weight, settings, False, True)[1]
        if outer_weight is not None:
            if gradient_is_wanted(ctx, 0):
                also = _Convolution.apply(x, outer_weight, settings)
                in_grad = also if in_grad is None else in_grad + also
            if gradient_is_wanted(ctx, 1):
                in_x = _ConvolutionGradient.apply(grad, x, outer_weight, settings, True, False)[0]
        return in_grad, in_x, in_weight, None, None, None

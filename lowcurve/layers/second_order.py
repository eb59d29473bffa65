r"""Convolution, batch norm and softplus whose gradients are cheap to differentiate again.

PyTorch's own double backward of a convolution computes the weight's part as a convolution with an image-sized kernel,
and that of batch norm runs through dozens of passes: measured on a CPU, 3 and 25 times what the formulas need. Inside
`fast_double_backward` each call of `conv1d`, `conv2d` or `batch_norm` uses the formulas below. Values and first
gradients are PyTorch's own, or those of compiled loops where these apply, as they do for `softplus` too.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from lowcurve.layers import _loops
from lowcurve.layers.batchnorm_gradient import batch_norm
from lowcurve.layers.engine import needed
from lowcurve.layers.softplus import LEAST_THRESHOLD, fixed_softplus

_aten = torch.ops.aten


class fast_double_backward(TorchFunctionMode):
    """Context: forwards inside build graphs whose gradients are cheap to differentiate (GradReg, CURE, HVPs).

    Where no gradient will be differentiated, `twice=False` leaves convolutions to PyTorch.

    >>> x, w = torch.ones(1, 1, 4, 4, requires_grad=True), torch.ones(1, 1, 3, 3)
    >>> with fast_double_backward():
    ...     y = F.conv2d(x, w).square().sum()
    >>> (gradient,) = torch.autograd.grad(y, x, create_graph=True)
    >>> (second,) = torch.autograd.grad(gradient.sum(), x)
    >>> float(second[0, 0, 0, 0])
    18.0
    """

    def __init__(self, twice: bool = True) -> None:
        super().__init__()
        self.replacements = _REPLACEMENTS if twice else _LOOPS

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        replacement = self.replacements.get(func)
        if replacement is not None and torch.is_grad_enabled() and not torch.compiler.is_compiling():
            result = replacement(*args, **(kwargs or {}))
            if result is not None:
                return result
        return func(*args, **(kwargs or {}))


def _convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor | None:
    if isinstance(padding, str) or not _plain(x, weight):
        return None
    dims = weight.dim() - 2
    settings = (_repeat(stride, dims), _repeat(padding, dims), _repeat(dilation, dims), groups)
    y = _Convolution.apply(x, weight, settings)
    return y if bias is None else y + bias.view(-1, *(1,) * dims)


def _batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor | None:
    others = (running_mean, running_var, weight, bias)
    if not _plain(x) or any(t is not None and t.shape != x.shape[1:2] for t in others):
        return None  # a wrong number of channels is for PyTorch to refuse
    if training and x.numel() <= x.shape[1]:
        return None  # so is a single value per channel
    if not training and running_mean is not None and running_var is not None:  # affine: one multiply-add per value
        slope = (running_var + eps).rsqrt() * (1.0 if weight is None else weight)
        shift = -running_mean * slope if bias is None else bias - running_mean * slope
        shape = (1, -1, *(1,) * (x.dim() - 2))
        return torch.addcmul(shift.view(shape), x, slope.view(shape))
    return batch_norm(x, weight, bias, running_mean, running_var, momentum, eps)


def _softplus(x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor | None:
    usual = 0 < beta < math.inf and threshold >= LEAST_THRESHOLD
    return fixed_softplus(x, beta) if usual and _plain(x) and _loops.applies(x) else None


_LOOPS: dict[Any, Any] = {F.batch_norm: _batch_norm, F.softplus: _softplus}
_REPLACEMENTS: dict[Any, Any] = {F.conv1d: _convolution, F.conv2d: _convolution, **_LOOPS}


def _plain(*tensors: Tensor) -> bool:
    """Whether the tensors are such that the formulas' precision is theirs (no autocast, no transform around them)."""
    device = tensors[0].device.type
    return not torch.is_autocast_enabled(device) and not torch._C._are_functorch_transforms_active()


def _repeat(value: Any, dims: int) -> list[int]:
    return [value] * dims if isinstance(value, int) else list(value) * (dims // len(value))


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
        return *_ConvolutionGradient.apply(grad, x, weight, ctx.settings, needed(ctx, 0), needed(ctx, 1)), None


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
            if needed(ctx, 0):
                in_grad = _Convolution.apply(outer_x, weight, settings)
            if needed(ctx, 2):
                in_weight = _ConvolutionGradient.apply(grad, outer_x, weight, settings, False, True)[1]
        if outer_weight is not None:
            if needed(ctx, 0):
                also = _Convolution.apply(x, outer_weight, settings)
                in_grad = also if in_grad is None else in_grad + also
            if needed(ctx, 1):
                in_x = _ConvolutionGradient.apply(grad, x, outer_weight, settings, True, False)[0]
        return in_grad, in_x, in_weight, None, None, None

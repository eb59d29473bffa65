"""How does anybody's network use this package's operators? Inside a context that replaces calls of PyTorch's functions.

Inside `fast_double_backward` each call of `conv1d`, `conv2d`, `batch_norm` or `softplus` builds a graph of
this package's operators, whose gradients are cheap to differentiate again; `hardsigmoid` becomes a clip, as PyTorch has
no second derivative of it, and attention takes PyTorch's plain path, as the fused ones have none either.
"""

from contextlib import ExitStack
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from lowcurve import checks
from lowcurve.compat import innermost_function_mode
from lowcurve.kernels.attention import plain_attention
from lowcurve.kernels.batchnorm import batch_norm_by_operator
from lowcurve.kernels.convolution import convolution
from lowcurve.kernels.engine import is_transformed
from lowcurve.kernels.norm import Statistics
from lowcurve.kernels.softplus import fixed_softplus, replaces_softplus


class fast_double_backward(TorchFunctionMode):
    """Context: forwards inside build graphs whose gradients are cheap to differentiate (GradReg, CURE, HVPs).

    Values and gradients are PyTorch's own. A converted model whose input needs a gradient enters it by itself.
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
        checks.flag(twice=twice)
        self.replacements = _TWICE if twice else _ONCE
        self._attention: list[ExitStack] = []  # one for each time that the context is entered

    @classmethod
    def is_on(cls) -> bool:
        """Whether functions come here first and gradients of gradients are cheap already."""
        mode = innermost_function_mode()
        return isinstance(mode, cls) and mode.replacements is _TWICE

    def __enter__(self) -> Self:
        contexts = ExitStack()
        if self.replacements is _TWICE:
            contexts.enter_context(plain_attention())
        self._attention.append(contexts)
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._attention.pop().close()

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
    if isinstance(padding, str) or is_transformed(x) or x.dim() != weight.dim():  # or a single sample
        return None
    dims = weight.dim() - 2
    settings = (_repeat(stride, dims), _repeat(padding, dims), _repeat(dilation, dims), groups)
    y = convolution(_autocast(x), _autocast(weight), settings)
    return y if bias is None else y + bias.to(y.dtype).view(-1, *(1,) * dims)


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
    statistics = Statistics(running_mean, running_var, momentum, eps)
    y = batch_norm_by_operator(x, weight, bias, statistics, training)
    if y is not None or training or is_transformed(x) or running_mean is None or running_var is None:
        return y
    if any(t is not None and t.shape != x.shape[1:2] for t in (running_mean, running_var, weight, bias)):
        return None  # a wrong number of channels is for PyTorch to refuse
    slope = (running_var + eps).rsqrt() * (1.0 if weight is None else weight)  # affine: one multiply-add per value
    shift = -running_mean * slope if bias is None else bias - running_mean * slope
    shape = (1, -1, *(1,) * (x.dim() - 2))
    return torch.addcmul(shift.view(shape), x, slope.view(shape))


def _softplus(x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor | None:
    return fixed_softplus(x, beta) if replaces_softplus(x, beta, threshold) else None


def _hardsigmoid(x: Tensor, inplace: bool = False) -> Tensor:
    """Write it as a clip, which PyTorch can differentiate twice."""
    y = (x + 3).clamp(0, 6) / 6
    return x.copy_(y) if inplace else y


_ONCE: dict[Any, Any] = {F.batch_norm: _batch_norm, F.softplus: _softplus}
_TWICE: dict[Any, Any] = {F.conv1d: _convolution, F.conv2d: _convolution, F.hardsigmoid: _hardsigmoid, **_ONCE}


def _autocast(tensor: Tensor) -> Tensor:
    """Cast an operand of a convolution as autocast would."""
    device = tensor.device.type
    casts = torch.is_autocast_enabled(device) and tensor.dtype is torch.float32
    return tensor.to(torch.get_autocast_dtype(device)) if casts else tensor


def _repeat(value: Any, dims: int) -> list[int]:
    return [value] * dims if isinstance(value, int) else list(value) * (dims // len(value))

"""Which step is a layer? One registration per type of module; subclasses do not inherit it, as they may do otherwise.

`layer_step.register(SomeLayer)` on a function (module, input shape, output shape) → Step adds a layer, from outside
the package too; an activation only registers its `lowcurve.layers.traits.constants`. Shapes are those of one sample.
A layer of several steps returns them as nodes, whose inputs count 0 for the layer's and i for the i-th of them.
"""

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn

from lowcurve.compat import DROPOUTS
from lowcurve.errors import UserError
from lowcurve.guarantees.affine import AveragePool, Channelwise, Linear
from lowcurve.guarantees.network import Node, Shape
from lowcurve.guarantees.operator_norm import effective_weight
from lowcurve.guarantees.residual import SCALE_TERMS, block_nodes, refuse_out_of_range, same_size
from lowcurve.guarantees.steps import Activation, MaxPool, Rearrange, Reshape, SortedPairs, Step
from lowcurve.layers.batchnorm import LipschitzBatchNorm1d, LipschitzBatchNorm2d
from lowcurve.layers.lipschitz import LipschitzResidual, LipschitzResidual2d
from lowcurve.layers.maxmin import AlmostOrthogonal2d, MaxMin
from lowcurve.layers.residual import Normalize
from lowcurve.layers.traits import ByExactType, constants
from lowcurve.linalg.linear_map import LinearMap

# Roundings in a row behind one value of a batch norm: variance + ε, root, quotient, products, differences; and γ's
# factor, which is a quotient of such numbers again.
_BATCHNORM_TERMS, _LIPSCHITZ_TERMS = 16, 32


@ByExactType
def layer_step(module: nn.Module, shape: Shape, output: Shape) -> Step | tuple[Node, ...]:
    """Return the step or steps of a layer on inputs and outputs of these shapes; by default that of an activation."""
    return activation_step(module)


def is_layer(module: nn.Module) -> bool:
    """Whether a module is of a registered type itself."""
    return type(module) in layer_step.registry or type(module) in constants.registry


def activation_step(module: nn.Module) -> Activation:
    """Return the step of an activation, evaluated by a copy in float64 that overwrites nothing and does not jump."""
    twin = copy.deepcopy(module).cpu().double().eval().requires_grad_(False)
    step = Activation(twin)
    if hasattr(twin, "inplace"):
        twin.inplace = False  # type: ignore[assignment]
    if isinstance(twin, nn.Softplus):
        twin.threshold = 40.0  # from there on float64 does not show the difference to x
    return step


def module_overwrites(module: nn.Module) -> bool:
    """Whether a layer in eval mode changes its input in place."""
    return bool(getattr(module, "inplace", False)) and not isinstance(module, DROPOUTS)


@layer_step.register(nn.Linear)
@layer_step.register(nn.Conv1d)
@layer_step.register(nn.Conv2d)
def _linear(module: Any, shape: Shape, output: Shape) -> Step:
    bias = None if module.bias is None else module.bias.detach().double()
    return Linear(LinearMap.of(module, shape[1:]), effective_weight(module), bias)


@layer_step.register(nn.BatchNorm1d)
@layer_step.register(nn.BatchNorm2d)
def _batch_norm(module: Any, shape: Shape, output: Shape) -> Step:
    return _normalization(module, 1.0, len(shape), _BATCHNORM_TERMS)


@layer_step.register(LipschitzBatchNorm1d)
@layer_step.register(LipschitzBatchNorm2d)
def _lipschitz_batch_norm(module: Any, shape: Shape, output: Shape) -> Step:
    if type(module.norm) not in (nn.BatchNorm1d, nn.BatchNorm2d):
        raise UserError(f"holds a {type(module.norm).__name__}; expected a plain batch norm, put that in its place")
    factor = copy.deepcopy(module).double().factor().detach()
    refuse_out_of_range(module.factor().detach(), factor, _LIPSCHITZ_TERMS)
    return _normalization(module.norm, float(factor), len(shape), _BATCHNORM_TERMS + _LIPSCHITZ_TERMS)


@layer_step.register(Normalize)
def _normalize(module: Any, shape: Shape, output: Shape) -> Step:
    scale, mean = 1 / module.std.double(), module.mean.double()
    scale, shift = (t.view(1, -1, *(1 for _ in shape[1:])) for t in (scale, -mean * scale))
    return Channelwise(scale, shift)


def _normalization(norm: Any, factor: float, dims: int, terms: int) -> Channelwise:
    """(x − mean) w / √(var + ε) + b, both times a factor; `offset` keeps the sizes of mean and b, which may cancel."""
    if norm.running_mean is None or norm.running_var is None:
        raise UserError("normalizes by the batch; use track_running_stats=True")
    if bool((norm.running_var < 0).any()) or not float(norm.eps) >= 0:
        raise UserError("has a negative running variance or ε; use a batch norm that was trained")
    scale = factor / (norm.running_var.double() + norm.eps).sqrt()
    mean = norm.running_mean.double()
    bias = torch.zeros_like(mean) if norm.bias is None else norm.bias.detach().double() * factor
    if norm.weight is not None:
        scale = scale * norm.weight.detach().double()
    if not bool(scale.isfinite().all()):
        raise UserError("divides by a variance of 0; use ε > 0")
    shape = (1, -1, *(1,) * (dims - 1))
    scale, shift, size = (t.view(shape) for t in (scale, bias - mean * scale, bias.abs() + (mean * scale).abs()))
    return Channelwise(scale, shift, size, terms)


@layer_step.register(nn.Identity)
@layer_step.register(nn.Flatten)
@layer_step.register(nn.Dropout)
@layer_step.register(nn.Dropout1d)
@layer_step.register(nn.Dropout2d)
def _nothing(module: nn.Module, shape: Shape, output: Shape) -> Step:
    return Reshape(output)


@layer_step.register(nn.PixelShuffle)
@layer_step.register(nn.PixelUnshuffle)
@layer_step.register(nn.ChannelShuffle)
@layer_step.register(nn.ZeroPad1d)
@layer_step.register(nn.ZeroPad2d)
@layer_step.register(nn.ZeroPad3d)
def _rearranged(module: nn.Module, shape: Shape, output: Shape) -> Step:
    return Rearrange(module)


@layer_step.register(LipschitzResidual)
@layer_step.register(LipschitzResidual2d)
def _residual(module: Any, shape: Shape, output: Shape) -> tuple[Node, ...]:
    if type(module.activation) not in constants.registry:
        raise UserError(f"its {type(module.activation).__name__} has no registered constants; use softplus or ReLU")
    return block_nodes(module, shape, activation_step(module.activation))


@layer_step.register(nn.AvgPool1d)
@layer_step.register(nn.AvgPool2d)
def _average_pool(module: Any, shape: Shape, output: Shape) -> Step:
    """Bound the weight that an average gives to one input: 1 / window, or 1 where windows are cut at the border."""
    dims = len(shape) - 1
    window = math.prod(_tuple(module.kernel_size, dims))
    whole = module.count_include_pad or not any(_tuple(module.padding, dims))
    cut = getattr(module, "divisor_override", None) or module.ceil_mode or not whole
    return AveragePool(module, 1.0 if cut else 1 / window, shape, window)


@layer_step.register(nn.AdaptiveAvgPool1d)
@layer_step.register(nn.AdaptiveAvgPool2d)
def _adaptive_pool(module: Any, shape: Shape, output: Shape) -> Step:
    sizes = list(zip(shape[1:], output[1:], strict=True))
    largest = 1 / math.prod(n // m if n >= m else 1 for n, m in sizes)
    return AveragePool(module, largest, shape, math.prod(min(n, math.ceil(n / m) + 1) for n, m in sizes))


@layer_step.register(nn.MaxPool1d)
@layer_step.register(nn.MaxPool2d)
def _max_pool(module: Any, shape: Shape, output: Shape) -> Step:
    """Count the windows that can contain one input."""
    dims = len(shape) - 1
    kernel, stride, dilation = (_tuple(v, dims) for v in (module.kernel_size, module.stride, module.dilation))
    return MaxPool(
        module, math.prod(k if d > 1 else math.ceil(k / s) for k, s, d in zip(kernel, stride, dilation, strict=True))
    )


@layer_step.register(AlmostOrthogonal2d)
def _almost_orthogonal(module: Any, shape: Shape, output: Shape) -> Step:
    weight = copy.deepcopy(module).cpu().double().eval().divided().detach()
    return Linear(same_size(weight, shape), weight, module.bias.detach().double(), extra_terms=SCALE_TERMS)


@layer_step.register(MaxMin)
def _max_min(module: MaxMin, shape: Shape, output: Shape) -> Step:
    return SortedPairs(module)


def _tuple(value: int | Shape, dims: int) -> Shape:
    return (value,) * dims if isinstance(value, int) else tuple(value)


def scalar(value: float) -> Tensor:
    """Return a number as a tensor that broadcasts to anything."""
    return torch.tensor(float(value), dtype=torch.float64)

"""Which steps does a model consist of? Traces it by torch.fx and looks every operation up in a table.

Nothing is guessed: an operation without known constants is refused by name, with what to do instead.
"""

import copy
import math
import operator
from collections.abc import Callable
from typing import Any, TypeGuard

import torch
import torch.nn.functional as F
from torch import fx, nn
from torch.fx.passes.shape_prop import ShapeProp

from lowcurve.errors import UserError
from lowcurve.guarantees.operator_norm import effective_weight
from lowcurve.guarantees.steplist import Network, Node, Shape
from lowcurve.guarantees.steps import (
    Activation,
    Add,
    AveragePool,
    Channelwise,
    Concatenate,
    Linear,
    MaxPool,
    Reshape,
    Step,
)
from lowcurve.layers.batchnorm import LipschitzBatchNorm1d, LipschitzBatchNorm2d
from lowcurve.layers.linear_map import LinearMap
from lowcurve.layers.residual import Normalize
from lowcurve.layers.traits import constants
from lowcurve.modes import generator, observing

_CHANNELWISE = (nn.BatchNorm1d, nn.BatchNorm2d, LipschitzBatchNorm1d, LipschitzBatchNorm2d, Normalize)
_NOTHING = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Flatten)
_SUMS = (operator.add, operator.iadd, torch.add, "add", "add_")
_PRODUCTS = (operator.mul, operator.imul, torch.mul, "mul", "mul_")
_QUOTIENTS = (operator.truediv, operator.itruediv, torch.div, "div", "div_")
_CONCATENATIONS = (torch.cat, torch.concat)
_RELUS = (F.relu, torch.relu, torch.relu_, "relu", "relu_")
_RESHAPES = (
    torch.flatten,
    torch.reshape,
    torch.squeeze,
    "flatten",
    "view",
    "reshape",
    "squeeze",
    "contiguous",
    "clone",
)


class _Tracer(fx.Tracer):
    """Look into modules of the user, but not into layers that the table knows or that PyTorch defines."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Stop at layers."""
        known = type(m) in constants.registry or type(m) in _CHANNELWISE
        return known or super().is_leaf_module(m, module_qualified_name)


def network(model: nn.Module, input_size: Shape) -> Network:
    """Trace `model` in eval mode on samples of shape `input_size` and return its steps; weights are copied."""
    with observing(model), torch.no_grad():
        whole = model
        if _Tracer().is_leaf_module(model, ""):
            whole = nn.Sequential(model)  # a single layer has no graph of its own
        graph, modules = _traced(whole, input_size), dict(whole.named_modules())
        nodes: list[Node] = []
        position: dict[fx.Node, int] = {}
        for node in graph.nodes:
            if node.op == "placeholder":
                position[node] = 0
            elif node.op == "output":
                found = _finished(node, nodes, position, input_size)
                _verify(found, model)
                return found
            elif "tensor_meta" in node.meta and node.op != "get_attr":
                _append(node, modules, nodes, position)
    raise UserError("expected a model with an output, got a graph without one")


def _verify(net: Network, model: nn.Module) -> None:
    """Refuse a model whose traced steps compute something else than it does."""
    like = next(iter(model.parameters()), torch.zeros(()))
    x = torch.rand(2, *net.input_size, generator=generator(0), dtype=torch.float64)
    exact, logits = net.values(x)[-1], model(x.to(like)).cpu().double()
    difference = float((logits - exact).abs().max())
    if not difference <= 1e-2 * float(exact.abs().max()) + 1e-3:
        raise UserError(
            "expected the traced steps to reproduce the model's logits, got a difference of "
            f"{difference:.2g}; a hook or a state that torch.fx cannot see changes the result: remove it"
        )


def _traced(model: nn.Module, input_size: Shape) -> fx.Graph:
    """Trace the model and note the shape of every tensor."""
    try:
        graph = _Tracer().trace(model)
        example = next((p for p in model.parameters()), torch.zeros(())).new_zeros(2, *input_size)
        module = fx.GraphModule(model, graph)
        with torch.no_grad():
            ShapeProp(module).propagate(example)
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"expected a model that torch.fx can trace on inputs of shape {tuple(input_size)}, "
            f"got {type(model).__name__}: {error}. Check the shape; a forward whose control flow depends on the "
            "data cannot be bounded"
        ) from error
    return graph


def _finished(output: fx.Node, nodes: list[Node], position: dict[fx.Node, int], input_size: Shape) -> Network:
    result = output.args[0]
    shape: Shape = _shape(result) if isinstance(result, fx.Node) else ()
    if not isinstance(result, fx.Node) or len(shape) != 2 or position[result] != len(nodes):
        raise UserError(f"expected a model that returns logits of shape (N, classes), got {tuple(shape)}")
    return Network(tuple(nodes), tuple(input_size), shape[1])


def _append(node: fx.Node, modules: dict[str, nn.Module], nodes: list[Node], position: dict[fx.Node, int]) -> None:
    """Add the step of one fx node, or fold it into the layer before."""
    inputs = [argument for argument in node.all_input_nodes if "tensor_meta" in argument.meta]
    if inputs and _shape(node)[0] != 2:
        raise _refused(node, modules, "mixes the samples of a batch", "keep dimension 0 for the batch")
    if any(argument.op == "get_attr" for argument in inputs):
        raise _refused(node, modules, "uses a tensor of its own", "write it as a layer of torch.nn or lowcurve")
    places = tuple(position[argument] for argument in inputs)
    step = _step(node, inputs, modules)
    before = nodes[places[0] - 1] if len(places) == 1 and places[0] else None
    if isinstance(step, Channelwise) and before is not None and _absorbs(before.step, inputs[0], step):
        name = f"{before.name}+{_name(node)}"
        nodes[places[0] - 1] = Node(name, _folded(before.step, step), before.inputs)
        position[node] = places[0]
        return
    nodes.append(Node(_name(node), step, places))
    position[node] = len(nodes)


def _step(node: fx.Node, inputs: list[fx.Node], modules: dict[str, nn.Module]) -> Step:
    if node.op == "call_module":
        return _module_step(node, inputs[0], modules)
    for kinds, rule in _FUNCTIONS:
        if node.target in kinds:
            step = rule(node, inputs)
            if step is not None:
                return step
    raise _refused(node, modules, "has no known constants", "write it with modules of torch.nn or lowcurve")


def _module_step(node: fx.Node, before: fx.Node, modules: dict[str, nn.Module]) -> Step:
    """Look a layer up by its type."""
    module, shape = modules[str(node.target)], _shape(before)[1:]
    if type(module) in constants.registry:
        return Activation(_double(module))
    if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d):
        bias = None if module.bias is None else module.bias.detach().cpu().double()
        return Linear(LinearMap.of(module, shape[1:]), effective_weight(module), bias)
    if type(module) in _CHANNELWISE:
        if not getattr(getattr(module, "norm", module), "track_running_stats", True):
            raise _refused(node, modules, "normalizes by the batch", "use track_running_stats=True")
        return _channelwise(_double(module), shape)
    if type(module) in _NOTHING:
        return Reshape(_shape(node)[1:])
    if isinstance(module, nn.AvgPool1d | nn.AvgPool2d | nn.AdaptiveAvgPool1d | nn.AdaptiveAvgPool2d):
        return AveragePool(module, _largest_entry(module, shape[1:], _shape(node)[2:]), shape)
    if isinstance(module, nn.MaxPool1d | nn.MaxPool2d):
        return MaxPool(module, _overlap(module, len(shape) - 1))
    remedy = (
        "replace it by average pooling, batch norm, a residual average or an activation with registered "
        "lowcurve.layers.traits.constants, or bound the part of the model without it"
    )
    raise _refused(node, modules, "has no known constants", remedy)


def _sum_step(node: fx.Node, inputs: list[fx.Node]) -> Step | None:
    if len(node.args) == 2 and all(isinstance(a, fx.Node) for a in node.args) and not node.kwargs:
        if len(inputs) == 1:  # x + x
            return Channelwise(torch.tensor(2.0, dtype=torch.float64), torch.tensor(0.0, dtype=torch.float64))
        return Add() if _shape(inputs[0]) == _shape(inputs[1]) else None
    return _number_step(node, lambda number: (1.0, number))


def _number_step(node: fx.Node, affine: Callable[[float], tuple[float, float]]) -> Step | None:
    """x ∘ number, with `affine` saying which multiple and shift that is."""
    numbers = [a for a in node.args if isinstance(a, int | float)]
    if len(numbers) != 1 or len(node.args) != 2 or node.kwargs:
        return None
    scale, shift = affine(float(numbers[0]))
    return Channelwise(torch.tensor(scale, dtype=torch.float64), torch.tensor(shift, dtype=torch.float64))


def _quotient_step(node: fx.Node, inputs: list[fx.Node]) -> Step | None:
    if not isinstance(node.args[0], fx.Node):
        return None
    return _number_step(node, lambda number: (1 / number, 0.0))


def _concatenation_step(node: fx.Node, inputs: list[fx.Node]) -> Step | None:
    dim = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else 0)
    repeated = len(inputs) != len(node.args[0])  # type: ignore[arg-type]
    return None if repeated or not isinstance(dim, int) or dim % len(_shape(node)) == 0 else Concatenate(dim)


_FUNCTIONS: tuple[tuple[tuple[Any, ...], Callable[[fx.Node, list[fx.Node]], Step | None]], ...] = (
    (_SUMS, _sum_step),
    (_PRODUCTS, lambda node, inputs: _number_step(node, lambda number: (number, 0.0))),
    (_QUOTIENTS, _quotient_step),
    (_CONCATENATIONS, _concatenation_step),
    (_RELUS, lambda node, inputs: Activation(nn.ReLU())),
    (_RESHAPES, lambda node, inputs: Reshape(_shape(node)[1:])),
    ((F.dropout,), lambda node, inputs: None if node.kwargs.get("training", True) else Reshape(_shape(node)[1:])),
)


def _channelwise(module: nn.Module, shape: Shape) -> Channelwise:
    """Read scale and shift of an affine map per channel off its values at 0 and 1."""
    flat = (1, shape[0], *(1 for _ in shape[1:]))
    with torch.no_grad():
        shift = module(torch.zeros(flat, dtype=torch.float64))
        return Channelwise(module(torch.ones(flat, dtype=torch.float64)) - shift, shift)


def _absorbs(layer: Step, node: fx.Node, after: Channelwise) -> TypeGuard[Linear]:
    """Tell whether a factor per channel can join the layer before: nothing else reads it, and its rows are channels."""
    if not isinstance(layer, Linear) or len(node.users) != 1:
        return False
    return after.scale.numel() == 1 or len(_shape(node)) == 1 + len(layer.map.output_shape)


def _folded(layer: Linear, after: Channelwise) -> Linear:
    """Return diag(scale) W x + (scale b + shift) as one layer, whose norm is that of the product."""
    channels = layer.weight.shape[0]
    scale, shift = (t.flatten().expand(channels) for t in (after.scale, after.shift))
    bias = shift if layer.bias is None else scale * layer.bias + shift
    return Linear(layer.map, layer.weight * scale.view(-1, *(1,) * (layer.weight.dim() - 1)), bias)


def _largest_entry(module: Any, size: Shape, output: Shape) -> float:
    """Bound the weight that an average gives to one input: 1 / window, or 1 where windows are cut at the border."""
    if isinstance(module, nn.AdaptiveAvgPool1d | nn.AdaptiveAvgPool2d):
        return 1 / math.prod(n // m if n >= m else 1 for n, m in zip(size, output, strict=True))
    whole = module.count_include_pad or not any(_tuple(module.padding, len(size)))
    override = getattr(module, "divisor_override", None)
    if override or module.ceil_mode or not whole:
        return 1.0
    return 1 / math.prod(_tuple(module.kernel_size, len(size)))


def _overlap(module: Any, dims: int) -> int:
    """Count the windows of a max-pooling that can contain one input."""
    kernel, stride, dilation = (_tuple(v, dims) for v in (module.kernel_size, module.stride, module.dilation))
    return math.prod(k if d > 1 else math.ceil(k / s) for k, s, d in zip(kernel, stride, dilation, strict=True))


def _tuple(value: int | Shape, dims: int) -> Shape:
    return (value,) * dims if isinstance(value, int) else tuple(value)


def _double(module: nn.Module) -> nn.Module:
    """Return a copy that computes in float64 on the processor and overwrites nothing."""
    twin = copy.deepcopy(module).cpu().double().eval().requires_grad_(False)
    if hasattr(twin, "inplace"):
        twin.inplace = False  # type: ignore[assignment]
    return twin


def _shape(node: fx.Node) -> Shape:
    return tuple(node.meta["tensor_meta"].shape)


def _name(node: fx.Node) -> str:
    return str(node.target) if node.op == "call_module" else node.name


def _refused(node: fx.Node, modules: dict[str, nn.Module], why: str, remedy: str) -> UserError:
    if node.op == "call_module":
        what = f"{type(modules[str(node.target)]).__name__} at {str(node.target)!r}"
    else:
        what = f"the operation {getattr(node.target, '__name__', node.target)!r} ({node.name})"
    return UserError(f"cannot bound this model: {what} {why}; {remedy}")

"""Which steps does a model consist of? Traces a copy of it by torch.fx and looks every operation up.

Nothing is guessed: an operation without known constants is refused by name, with what to do instead. What is found is
then run in float64 beside the copy, and must agree within the proven rounding errors of float64.
"""

from dataclasses import replace
from typing import TypeGuard

import torch
from torch import Tensor, fx, nn

from lowcurve import checks
from lowcurve.compat import DROPOUTS
from lowcurve.errors import UserError
from lowcurve.guarantees import functions, layers
from lowcurve.guarantees.affine import Channelwise, Linear
from lowcurve.guarantees.arithmetic import FLOAT64
from lowcurve.guarantees.faithful import plain_copy, refuse_overwritten
from lowcurve.guarantees.network import Network, Node, Shape
from lowcurve.guarantees.operations import refuse_unseen
from lowcurve.guarantees.rounding import rounding
from lowcurve.guarantees.steps import Reshape, Step
from lowcurve.guarantees.tracing import Kind, Tracer, example_of, traced
from lowcurve.random import generator

_SCALES = (1.0, 30.0, 1e-3)  # of the points at which steps and model are compared


def trace_network(model: nn.Module, input_size: Shape, *, gradients: bool = False) -> Network:
    """Trace `model` in eval mode on samples of shape `input_size` and return its steps; the model stays as it is.

    With `gradients` the steps also have to say how PyTorch differentiates the model by its input.
    """
    twin = plain_copy(model, gradients=gradients)
    if Tracer().is_leaf_module(twin, ""):
        twin = nn.Sequential(twin)  # a single layer has no graph of its own
    with torch.no_grad():
        graph, modules = traced(twin, input_size), dict(twin.named_modules())
        _refuse_overwritten(graph, modules)
        found = _assembled(graph, modules, input_size)
        example = torch.rand(2, *input_size, generator=generator(0)).to(example_of(twin, input_size))
        refuse_unseen(twin, graph, example, gradients=gradients)
        _verify(found, twin.double())
    return found


def _assembled(graph: fx.Graph, modules: dict[str, nn.Module], input_size: Shape) -> Network:
    nodes: list[Node] = []
    position: dict[fx.Node, int] = {}
    for node in graph.nodes:
        if node.op == "placeholder":
            if position:
                raise UserError("expected a model of one input, got several; wrap it")
            position[node] = 0
        elif node.op == "output":
            return _finished(node, nodes, position, input_size)
        elif "tensor_meta" in node.meta:
            if node.op != "get_attr":
                _append(node, modules, nodes, position)
        elif node.op != "get_attr" and not functions.is_number(node):
            raise _refused(node, modules, "has no known constants", "write it with modules of torch.nn or lowcurve")
    raise UserError("expected a model with an output, got a graph without one")


def _verify(net: Network, model: nn.Module) -> None:
    """Refuse a model whose steps compute something else than it does, at points near and far."""
    everywhere = net.reaches()
    for i, scale in enumerate(_SCALES):
        x = scale * torch.randn(3 + i, *net.input_size, generator=generator(i), dtype=torch.float64)
        values = net.values(x)
        allowed = rounding(net, values, everywhere, x.new_zeros(len(x)), FLOAT64)[-1].parts
        refuse_difference(checks.run(model, x), values[-1], allowed)


def refuse_difference(logits: Tensor, values: Tensor, allowed: Tensor) -> None:
    """Refuse a model whose logits differ from those of its steps by more than rounding can explain."""
    difference = (logits - values).abs()
    if logits.shape == values.shape and bool(((difference <= allowed) | allowed.isinf()).all()):
        return
    raise UserError(
        "expected the traced steps to reproduce the model's logits, got a difference of "
        f"{float((difference - allowed).max()) if logits.shape == values.shape else torch.nan:.2g} beyond rounding; a "
        "state that torch.fx cannot see changes the result: remove it"
    )


def _refuse_overwritten(graph: fx.Graph, modules: dict[str, nn.Module]) -> None:
    def overwrites(node: fx.Node) -> bool:
        if node.op == "call_module":
            return layers.module_overwrites(modules[str(node.target)])
        return functions.node_overwrites(node)

    def aliases(node: fx.Node) -> bool:
        if node.op != "call_module":
            return functions.aliases(node)
        return isinstance(modules[str(node.target)], (nn.Identity, nn.Flatten, *DROPOUTS))

    refuse_overwritten(graph, overwrites, aliases)


def _finished(output: fx.Node, nodes: list[Node], position: dict[fx.Node, int], input_size: Shape) -> Network:
    result = output.args[0]
    shape: Shape = _shape(result) if isinstance(result, fx.Node) else ()
    if not isinstance(result, fx.Node) or len(shape) != 2 or position.get(result) != len(nodes):
        raise UserError(f"expected a model that returns logits of shape (N, classes), got {tuple(shape)}")
    if not nodes:
        nodes.append(Node("identity", Reshape(shape[1:]), (0,)))
    return Network(tuple(nodes), tuple(input_size), shape[1])


def _append(node: fx.Node, modules: dict[str, nn.Module], nodes: list[Node], position: dict[fx.Node, int]) -> None:
    """Add the step of one fx node, or fold it into the layer before."""
    inputs = [argument for argument in node.all_input_nodes if "tensor_meta" in argument.meta]
    meta = node.meta["tensor_meta"]
    if not isinstance(meta, Kind):
        raise _refused(node, modules, "returns several tensors", "write it with modules of torch.nn or lowcurve")
    if any(argument.op == "get_attr" for argument in inputs):
        raise _refused(node, modules, "uses a tensor of its own", "write it as a layer of torch.nn or lowcurve")
    if not inputs or _shape(node)[:1] != (2,):
        raise _refused(node, modules, "mixes the samples of a batch", "keep dimension 0 for the batch")
    if meta.dtype != inputs[0].meta["tensor_meta"].dtype:
        raise _refused(node, modules, "changes the type of numbers", "keep the model in one type")
    places = tuple(position[argument] for argument in inputs)
    step = _step(node, inputs, modules)
    before = nodes[places[0] - 1] if len(places) == 1 and places[0] else None
    if isinstance(step, Channelwise) and before is not None and _absorbs(before.step, inputs[0], step):
        nodes[places[0] - 1] = replace(before, name=f"{before.name}+{_name(node)}", step=before.step.scaled(step))
        position[node] = places[0]
        return
    parts = step if isinstance(step, tuple) else (Node("", step, tuple(range(-len(places), 0))),)
    nodes += [_placed(part, _name(node), places, len(nodes)) for part in parts]
    position[node] = len(nodes)


def _placed(part: Node, name: str, places: tuple[int, ...], before: int) -> Node:
    """Return a step of a layer as a node of the network, in which `before` nodes come before the layer."""
    inputs = tuple(before + i if i > 0 else places[i] for i in part.inputs)
    return Node(f"{name}.{part.name}".removesuffix("."), part.step, inputs)


def _step(node: fx.Node, inputs: list[fx.Node], modules: dict[str, nn.Module]) -> Step | tuple[Node, ...]:
    if node.op != "call_module":
        step = functions.function_step(node, inputs)
        if step is not None:
            return step
        raise _refused(node, modules, "has no known constants", "write it with modules of torch.nn or lowcurve")
    module = modules[str(node.target)]
    if not layers.is_layer(module) or len(node.args) != 1 or node.kwargs:
        remedy = (
            "replace it by average pooling, batch norm, a residual average or an activation with registered "
            "lowcurve.layers.traits.constants, or bound the part of the model without it"
        )
        raise _refused(node, modules, "has no known constants", remedy)
    try:
        return layers.layer_step(module, _shape(inputs[0])[1:], _shape(node)[1:])
    except UserError as error:
        raise _refused(node, modules, "has no known constants here", str(error)) from error


def _absorbs(layer: Step, node: fx.Node, after: Channelwise) -> TypeGuard[Linear]:
    """Tell whether a factor per channel can join the layer before: nothing else reads it, and its rows are channels."""
    if not isinstance(layer, Linear) or len(node.users) != 1:
        return False
    return after.scale.numel() == 1 or len(_shape(node)) == 1 + len(layer.map.output_shape)


def _shape(node: fx.Node) -> Shape:
    meta = node.meta.get("tensor_meta")
    return tuple(meta.shape) if isinstance(meta, Kind) else ()


def _name(node: fx.Node) -> str:
    return str(node.target) if node.op == "call_module" else node.name


def _refused(node: fx.Node, modules: dict[str, nn.Module], why: str, remedy: str) -> UserError:
    if node.op == "call_module":
        what = f"{type(modules[str(node.target)]).__name__} at {str(node.target)!r}"
    else:
        what = f"the operation {getattr(node.target, '__name__', node.target)!r} ({node.name})"
    return UserError(f"cannot bound this model: {what} {why}; {remedy}")

"""How is one forward rewritten so that each activation in it is a module of its own?

torch.fx traces the forward of a single module with its children as black boxes; calls of functional activations and
of activation modules then become calls of new modules, in the same order and with the same arguments.
"""

import copy
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.graph_module import _USER_PRESERVED_ATTRIBUTES_KEY

from lowcurve.errors import UserError
from lowcurve.surgery.probe import Record, tensors
from lowcurve.surgery.rules import ACTIVATIONS, FUNCTIONS, activation_rule

_REMEDY = (
    "call activations as modules, one nn.ReLU() per place, or move the part of the forward that calls them into "
    "a module with a simple forward"
)


class ChildrenAreLeaves(fx.Tracer):
    """Trace one forward; whatever its children do is a single node."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Do not look into any child."""
        return True


def rewritten(module: nn.Module, record: Record, where: str, origins: dict[nn.Module, str]) -> fx.GraphModule:
    """Return `module` with its forward written out and every activation in it a module."""
    if module._forward_hooks or module._forward_pre_hooks:
        raise UserError(f"the forward of {where} must be rewritten, but it has forward hooks; remove them first")
    made: dict[str, nn.Module] = {}
    found: dict[nn.Module, str] = {}
    training = module.training
    codes = []
    try:
        for mode in (not training, training):
            module.training = mode
            made.clear()
            graph = ChildrenAreLeaves().trace(module, _constants(module, record))
            _restore_parameter_names(graph, module)
            found = _give_modules(module, graph, made)
            codes.append(graph.python_code("self").src)
    except Exception as error:
        raise UserError(
            f"cannot convert the functional or shared activations of {where}: its forward cannot be traced "
            f"({type(error).__name__}: {error}); {_REMEDY}"
        ) from error
    finally:
        module.training = training
    if codes[0] != codes[1]:
        raise UserError(f"cannot convert the activations of {where}: its forward depends on self.training; {_REMEDY}")
    for target, new in made.items():
        new.train(training)
        module.add_module(target, new)
    origins.update(found)
    graph._tracer_cls = None  # or unpickling would need this file
    result = fx.GraphModule(module, graph, type(module).__name__)
    _keep_attributes(module, result)
    return result


def _constants(module: nn.Module, record: Record) -> dict[str, Any]:
    """Return the arguments of the recorded call that hold no tensor: flags and None, on which a forward may branch."""
    assert record.arguments is not None
    args, kwargs = record.arguments
    signature = inspect.signature(module.forward)
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    variadic = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    return {
        name: value
        for name, value in bound.arguments.items()
        if signature.parameters[name].kind not in variadic and next(tensors(value), None) is None
    }


def _restore_parameter_names(graph: fx.Graph, module: nn.Module) -> None:
    """Undo torch.fx's renaming of fixed arguments (`mask` to `mask_1`), so that keyword calls still work."""
    parameters = inspect.signature(module.forward).parameters
    for node in graph.nodes:
        if node.op == "placeholder" and str(node.target).lstrip("*") not in parameters:
            node.target = str(node.target).removesuffix("_1")


def _give_modules(module: nn.Module, graph: fx.Graph, made: dict[str, nn.Module]) -> dict[nn.Module, str]:
    """Replace each activation and dropout of the graph by a call of a new module; return origins of the new ones."""
    order = {node: position for position, node in enumerate(graph.nodes)}
    origins: dict[nn.Module, str] = {}
    for node in list(graph.nodes):
        new, origin, in_place = _module_of(node, module)
        if new is None:
            continue
        stem = str(node.target).replace(".", "_") if node.op == "call_module" else type(new).__name__.lower()
        target = next(t for k in range(1, len(order) + 2) if not hasattr(module, t := f"{stem}_{k}") and t not in made)
        made[target] = new
        if origin:
            origins[new] = origin
        source = node.args[0] if node.args else node.kwargs["input"]
        with graph.inserting_after(node):
            site = graph.call_module(target, (source,))
        order[site] = order[node]
        node.replace_all_uses_with(site)
        if in_place:
            source.replace_all_uses_with(site, lambda user, at=order[node]: order[user] > at)
        graph.erase_node(node)
    return origins


def _module_of(node: fx.Node, owner: nn.Module) -> tuple[nn.Module | None, str, bool]:
    """Return (new module, name of the function it was, whether it changed its input) for a node; None for others."""
    if node.op == "call_module":
        module = owner.get_submodule(str(node.target))
        if activation_rule(module) is None:
            return None, "", False
        return copy.deepcopy(module), "", bool(getattr(module, "inplace", False))
    function = getattr(Tensor, str(node.target), None) if node.op == "call_method" else node.target
    if node.op not in ("call_method", "call_function") or function not in FUNCTIONS:
        return None, "", False
    kind = FUNCTIONS[function][0]
    if kind not in ACTIVATIONS and not issubclass(kind, nn.modules.dropout._DropoutNd):
        return None, "", False
    module = module_for(function, node.args[1:], {k: v for k, v in node.kwargs.items() if k != "input"})
    in_place = function.__name__.endswith("_") or getattr(module, "inplace", False)
    return module, spelled(function) if kind in ACTIVATIONS else "", in_place


def module_for(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> nn.Module:
    """Return the module that does what `function(input, *args, **kwargs)` does."""
    kind, names = FUNCTIONS[function]
    settings = dict(zip(names, args, strict=False)) | kwargs
    settings.pop("training", None)
    if any(isinstance(value, fx.Node) for value in settings.values()):
        raise ValueError(f"{spelled(function)} takes a setting that the forward computes")
    if not 0 <= settings.get("negative_slope", 0) <= 1:
        raise ValueError(f"{spelled(function)} has a negative_slope outside [0, 1]")
    return kind(**settings)


def spelled(function: Callable[..., Any]) -> str:
    """Return how a function is usually written: `F.relu`, `x.relu_()`."""
    if isinstance(function, type(Tensor.relu)):
        return f"x.{function.__name__}()"
    return f"F.{function.__name__}" if hasattr(torch.nn.functional, function.__name__) else f"torch.{function.__name__}"


def _keep_attributes(module: nn.Module, result: fx.GraphModule) -> None:
    """Carry plain attributes (a config, sizes) over to the rewritten module, also through later copies."""
    kept = {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_") and name not in ("training", "forward") and not hasattr(result, name)
    }
    result.meta[_USER_PRESERVED_ATTRIBUTES_KEY] = kept
    for name, value in kept.items():
        setattr(result, name, value)

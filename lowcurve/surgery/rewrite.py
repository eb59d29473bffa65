"""How is one forward rewritten so that each activation in it is a module of its own?

torch.fx traces the forward of a single module with its children as black boxes; calls of functional activations and
of activation modules then become calls of new modules, in the same order and with the same arguments.
"""

import copy
import inspect
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn

from lowcurve.compat import DROPOUTS, children, forget_tracer
from lowcurve.errors import UserError
from lowcurve.surgery.inlined import inline
from lowcurve.surgery.nested import tensors
from lowcurve.surgery.probe import ForwardRecord
from lowcurve.surgery.rules import MODULE_OF, REPLACED, activation_rule

_REMEDY = (
    "call activations as modules, one nn.ReLU() per place, or move the part of the forward that calls them into "
    "a module with a simple forward"
)


class ChildrenAreLeaves(fx.Tracer):
    """Trace one forward; whatever its children do is a single node."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Do not look into any child."""
        return True


def rewrite(module: nn.Module, record: ForwardRecord, where: str, origins: dict[nn.Module, str]) -> None:
    """Write the forward of `module` out, with every activation in it a module; the rest of `module` stays."""
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
            found = _give_modules(module, graph, made, _container_places(module, record))
            codes.append(graph.python_code("self").src)
    except Exception as error:
        raise UserError(
            f"cannot convert the functional or shared activations of {where}: its forward cannot be traced "
            f"({type(error).__name__}: {error}); {_REMEDY}{_skipping(where)}"
        ) from error
    finally:
        module.training = training
    if codes[0] != codes[1]:
        raise UserError(
            f"cannot convert the activations of {where}: its forward depends on self.training; "
            f"{_REMEDY}{_skipping(where)}"
        )
    for target, new in made.items():
        new.train(training)
        holder, _, name = target.rpartition(".")
        module.get_submodule(holder).add_module(name, new)
    origins.update(found)
    forget_tracer(graph)
    inline(module, graph)
    for name, child in children(module).items():
        if child in record.calls and name not in made and activation_rule(child) is not None:
            delattr(module, name)  # every call of it has a module of its own


def _skipping(where: str) -> str:
    """Return the remedy for a module of somebody else's."""
    name = where.partition(" ")[0]
    return "" if name == "(model)" else f"; or leave it as it is, with all that is in it: skip=({name!r},)"


def _constants(module: nn.Module, record: ForwardRecord) -> dict[str, Any]:
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


def _container_places(module: nn.Module, record: ForwardRecord) -> dict[nn.Module, list[str]]:
    """Return where each activation stands in a list, dict or sequence of modules whose items the forward calls itself.

    Such a place gets the activation's new module, so that indexing (`model.layers[2]`) finds what is called.
    """
    places: defaultdict[nn.Module, list[str]] = defaultdict(list)

    def look(container: nn.Module, prefix: str) -> None:
        for name, child in children(container).items():
            if isinstance(child, nn.ModuleList | nn.ModuleDict | nn.Sequential) and child not in record.calls:
                look(child, f"{prefix}{name}.")
            elif prefix and child in record.calls and activation_rule(child) is not None:
                places[child].append(f"{prefix}{name}")

    look(module, "")
    return places


def _give_modules(
    module: nn.Module, graph: fx.Graph, made: dict[str, nn.Module], places: dict[nn.Module, list[str]]
) -> dict[nn.Module, str]:
    """Replace each activation and dropout of the graph by a call of a new module; return origins of the new ones."""
    order = {node: position for position, node in enumerate(graph.nodes)}
    origins: dict[nn.Module, str] = {}
    for node in list(graph.nodes):
        new, origin, in_place = _module_of(node, module)
        if new is None:
            continue
        called = node.op == "call_module"
        free = places.get(module.get_submodule(str(node.target)), []) if called else []
        stem = str(node.target).replace(".", "_") if called else type(new).__name__.lower()
        fresh = (t for k in range(1, len(order) + 2) if not hasattr(module, t := f"{stem}_{k}") and t not in made)
        target = free.pop(0) if free else next(fresh)
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
    if node.op not in ("call_method", "call_function") or function not in MODULE_OF:
        return None, "", False
    kind = MODULE_OF[function][0]
    if kind not in REPLACED and not issubclass(kind, DROPOUTS):
        return None, "", False
    module = module_for(function, node.args[1:], {k: v for k, v in node.kwargs.items() if k != "input"})
    in_place = function.__name__.endswith("_") or getattr(module, "inplace", False)
    return module, spelled(function) if kind in REPLACED else "", in_place


def module_for(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> nn.Module:
    """Return the module that does what `function(input, *args, **kwargs)` does."""
    kind, names = MODULE_OF[function]
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

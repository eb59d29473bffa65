"""How does a module keep everything but its forward? Its class becomes a subclass with the graph's code as forward.

So containers, attributes, hooks and `isinstance` stay. Methods that the old forward called are in the new one already,
with the old activations in them if they are called from elsewhere: such a call is refused.
"""

import copy
import importlib
import inspect
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

from torch import fx, nn

from lowcurve.errors import UserError

_MARK = "_lowcurve_inlined"


class _Import(NamedTuple):
    """A module among a function's globals, by its name, so that it can be pickled."""

    name: str


def inline(module: nn.Module, graph: fx.Graph) -> None:
    """Give `module` the graph's code as its forward, in place."""
    if isinstance(module, fx.GraphModule):
        module.graph = graph
        module.recompile()
        return
    code = graph.python_code("self")
    names = {
        k: _Import(value.__name__) if isinstance(value, ModuleType) else value for k, value in code.globals.items()
    }
    module.__class__ = _subclass(type(module), code.src, names, graph)


def inlined_graph(module: nn.Module) -> fx.Graph | None:
    """Return the graph that `inline` gave this module, if it did and the module was not pickled since."""
    return getattr(type(module), _MARK, None)


def is_inlined(module: nn.Module) -> bool:
    """Whether `inline` wrote this module's forward, or torch.fx did."""
    return hasattr(type(module), _MARK) or isinstance(module, fx.GraphModule)


def _subclass(
    base: type[nn.Module], source: str, names: dict[str, Any], graph: fx.Graph | None = None
) -> type[nn.Module]:
    """Return `base` with the forward that `source` defines, and a way to pickle and to copy its instances."""
    scope = {
        key: importlib.import_module(value.name) if isinstance(value, _Import) else value
        for key, value in names.items()
    }
    exec(compile(source, f"<forward of {base.__name__}>", "exec"), scope)  # torch.fx wrote it

    def reduce(self: nn.Module, protocol: Any) -> Any:
        return _rebuild, (base, source, names), self.__getstate__()

    body: dict[str, Any] = {name: _refusal(base.__name__, name) for name in _called(base)}
    body |= {"forward": scope["forward"], "__reduce_ex__": reduce, "__module__": base.__module__, _MARK: graph}
    if not hasattr(base, "__deepcopy__"):
        body["__deepcopy__"] = _copied
    return type(base.__name__, (base,), body)


def _rebuild(base: type[nn.Module], source: str, names: dict[str, Any]) -> nn.Module:
    kind = _subclass(base, source, names)
    return kind.__new__(kind)


def _copied(self: nn.Module, memo: dict[int, Any]) -> nn.Module:
    """Copy as Python does by default, with the class as it is."""
    new = memo[id(self)] = type(self).__new__(type(self))
    new.__setstate__(copy.deepcopy(self.__getstate__(), memo))
    return new


def _called(base: type[nn.Module]) -> set[str]:
    """Return the methods of the model's own classes that its forward calls, directly or through one another."""
    own = {
        name: value
        for kind in reversed(base.__mro__)
        if issubclass(kind, nn.Module) and not kind.__module__.startswith("torch.")
        for name, value in vars(kind).items()
        if isinstance(value, FunctionType) and not name.startswith("__")
    }
    found: set[str] = set()
    waiting = [inspect.unwrap(base.forward)]
    while waiting:
        function = waiting.pop()
        for name in set(_names(function.__code__)) & own.keys() - found - {"forward"}:
            found.add(name)
            waiting.append(inspect.unwrap(own[name]))
    return found


def _names(code: CodeType) -> Iterator[str]:
    """Yield the attribute names that a function's code, or a function inside it, uses."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _refusal(kind: str, name: str) -> Callable[..., Any]:
    def refuse(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        raise UserError(
            f"{kind}.{name} still has the activations from before the conversion: the forward of {kind} was rewritten "
            f"and does without it; make {name} a module of its own before the conversion"
        )

    refuse.__name__ = name
    return refuse

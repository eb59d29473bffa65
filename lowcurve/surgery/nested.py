"""What is inside an example input or an output? Tensors, nested in tuples, lists, mappings and objects with `logits`.

A kind of container that is not known here is registered with `tensors`, and with `clone_tensors` where models may
overwrite what is inside.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import singledispatch
from typing import Any

from torch import Tensor, nn

from lowcurve.outputs import keyword


def as_call(model: nn.Module, example_input: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Read an example as a call: a tuple is several arguments, a dict keyword arguments, anything else the argument.

    A tensor for a model that takes its pixels under a name is given under it.
    """
    if isinstance(example_input, Mapping):
        return (), dict(example_input)
    if isinstance(example_input, tuple):
        return tuple(example_input), {}
    name = keyword(model)
    return ((example_input,), {}) if name is None else ((), {name: example_input})


@singledispatch
def tensors(value: Any) -> Iterator[Tensor]:
    """Yield every tensor inside.

    >>> from torch import ones
    >>> list(tensors({"a": [ones(1), 3], "b": None}))
    [tensor([1.])]
    """
    if hasattr(value, "logits"):
        yield from tensors(vars(value))


@tensors.register
def _(value: Tensor) -> Iterator[Tensor]:
    yield value


@tensors.register(tuple)
@tensors.register(list)
def _(value: Iterable[Any]) -> Iterator[Tensor]:
    for item in value:
        yield from tensors(item)


@tensors.register
def _(value: Mapping) -> Iterator[Tensor]:
    yield from tensors(list(value.values()))


@singledispatch
def clone_tensors(value: Any) -> Any:
    """Return the same with a clone of every tensor inside."""
    return value


clone_tensors.register(Tensor, Tensor.clone)


@clone_tensors.register
def _(value: dict) -> Any:
    return type(value)((key, clone_tensors(item)) for key, item in value.items())


@clone_tensors.register(tuple)
@clone_tensors.register(list)
def _(value: Any) -> Any:
    items = [clone_tensors(item) for item in value]
    return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)

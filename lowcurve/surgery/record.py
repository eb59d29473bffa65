"""How was a model converted? A note on the model itself, so that a saved one can be made again from its original."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn

_NAME = "lowcurve_conversions"


def remember(before: nn.Module, model: nn.Module, example_input: Any, options: Mapping[str, Any]) -> None:
    """Note on `model` that it was made from `before` by `convert` with these options."""
    note = {"input": _describe(example_input), **options}
    notes = [*conversions(before), note]
    if isinstance(model, fx.GraphModule):
        model.meta[_NAME] = notes  # of its attributes a copy keeps this one
    else:
        setattr(model, _NAME, notes)


def conversions(model: nn.Module) -> list[dict[str, Any]]:
    """Return the notes on a model, oldest first; none where it is as its author made it."""
    found: list[dict[str, Any]] = getattr(model, _NAME, [])
    return list(model.meta.get(_NAME, found) if isinstance(model, fx.GraphModule) else found)


def forget(module: nn.Module) -> None:
    """Take the note off a module."""
    module.__dict__.pop(_NAME, None)
    if isinstance(module, fx.GraphModule):
        module.meta.pop(_NAME, None)


def _describe(value: Any) -> Any:
    """Describe a batch by types and shapes, one sample of it; None stands for what has no such description."""
    if isinstance(value, Tensor):
        return {"dtype": str(value.dtype).removeprefix("torch."), "shape": [1, *value.shape[1:]]}
    if isinstance(value, (tuple, list)):
        return [_describe(part) for part in value]
    if isinstance(value, Mapping):
        return {"arguments": {str(key): _describe(part) for key, part in value.items()}}
    return None


def example(description: Any) -> Any:
    """Return zeros of that description.

    >>> example({"dtype": "float32", "shape": [1, 2]})
    tensor([[0., 0.]])
    """
    if isinstance(description, list):
        return tuple(example(part) for part in description)
    if "arguments" in description:
        return {key: example(part) for key, part in description["arguments"].items()}
    dtype = getattr(torch, description["dtype"])
    return torch.zeros([int(side) for side in description["shape"]], dtype=dtype)

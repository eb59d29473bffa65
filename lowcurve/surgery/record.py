"""How was a model converted or folded? Notes on the model itself: a saved one can be made again from its original."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn

from lowcurve.layers.traits import learned

_NAME = "surgery_notes"  # a plain name: it stays on folded models, which are to know nothing of this package
FOLD = "fold"  # the key of a note of `fold`


def remember(before: nn.Module, model: nn.Module, example_input: Any, options: Mapping[str, Any]) -> None:
    """Note on `model` that it was made from `before` by `convert` with these options."""
    _add(before, model, {"input": _describe(example_input), **options})


def remember_fold(before: nn.Module, model: nn.Module, example_input: Any) -> None:
    """Note on `model` that it was made from `before` by `fold`, with the numbers that are in its code now."""
    baked = {
        name: {key: value.double().tolist() for key, value in module.state_dict().items()}
        for name, module in before.named_modules()
        if any(item.kind == "beta" for item in learned(module))
    }
    _add(before, model, {FOLD: baked, "input": _describe(example_input)})


def _add(before: nn.Module, model: nn.Module, note: dict[str, Any]) -> None:
    notes = [*conversions(before), note]
    if isinstance(model, fx.GraphModule):
        model.meta[_NAME] = notes  # of its attributes a copy keeps this one
    else:
        setattr(model, _NAME, notes)


def conversions(model: nn.Module) -> list[dict[str, Any]]:
    """Return the notes on a model, oldest first; none where it is as its author made it."""
    found: list[dict[str, Any]] = getattr(model, _NAME, [])
    return list(model.meta.get(_NAME, found) if isinstance(model, fx.GraphModule) else found)


@torch.no_grad()
def restore_numbers(model: nn.Module, baked: Mapping[str, Mapping[str, Any]]) -> None:
    """Give activations the numbers that a folded model has in its code."""
    for name, state in baked.items():
        for key, value in state.items():
            tensor = model.get_submodule(name).state_dict()[key]
            tensor.copy_(torch.tensor(value, dtype=torch.float64))


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
    if description is None:
        return None
    if isinstance(description, list):
        return tuple(example(part) for part in description)
    if "arguments" in description:
        return {key: example(part) for key, part in description["arguments"].items()}
    dtype = getattr(torch, description["dtype"])
    return torch.zeros([int(side) for side in description["shape"]], dtype=dtype)

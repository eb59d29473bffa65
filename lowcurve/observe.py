"""Look at a model without a trace: mode, gradient flags and buffers come back as they were."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

# What was computed of each module while somebody looks on. PyTorch's own cache of parametrizations goes by the address
# of a module: one that is made where another was freed would be given that one's weight.
_CONSTANTS: ContextVar[WeakKeyDictionary[nn.Module, tuple[Any, Tensor]] | None] = ContextVar("constants", default=None)


@contextmanager
def observing(model: nn.Module) -> Iterator[nn.Module]:
    """Put `model` in eval mode with parameters that need no gradient; restore each module and flag on exit.

    Eval mode changes no buffer of a well-behaved module; buffers that a forward changed all the same are restored,
    so that measuring a model never alters it.
    """
    modes = {module: module.training for module in model.modules()}
    flags = {parameter: parameter.requires_grad for parameter in model.parameters()}
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    model.eval()
    for parameter in flags:
        parameter.requires_grad_(False)
    known = _CONSTANTS.get()
    token = _CONSTANTS.set(WeakKeyDictionary() if known is None else known)
    try:
        yield model
    finally:
        _CONSTANTS.reset(token)
        for module, training in modes.items():
            module.training = training
        for parameter, flag in flags.items():
            parameter.requires_grad_(flag)
        with torch.no_grad():
            for buffer, value in buffers:
                if not torch.equal(buffer, value):  # an unchanged one may be part of a graph: leave it alone
                    buffer.copy_(value)


def constant(module: nn.Module, version: Any, compute: Callable[[], Tensor]) -> Tensor:
    """Return what `compute` gives for the module; while somebody looks on, once for each `version` of its tensors."""
    known = _CONSTANTS.get()
    if known is None:
        return compute()
    found = known.get(module)
    if found is None or found[0] != version:
        found = known[module] = (version, compute())
    return found[1]

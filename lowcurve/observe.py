"""Look at a model without a trace: mode, gradient flags and buffers come back as they were."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from lowcurve.compat import cloned, write_count

_COUNTING = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
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
    buffers = _Buffers(model)
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
        buffers.restore()


def is_observed() -> bool:
    """Whether somebody looks on, for whom `constant` keeps what it computes."""
    return _CONSTANTS.get() is not None


def constant(module: nn.Module, version: Any, compute: Callable[[], Tensor]) -> Tensor:
    """Return what `compute` gives for the module; while somebody looks on, once for each `version` of its tensors."""
    known = _CONSTANTS.get()
    if known is None:
        return compute()
    found = known.get(module)
    if found is None or found[0] != version:
        found = known[module] = (version, compute())
    return found[1]


class _Buffers:
    """The buffers of a model as they are now.

    Batch norms count their batches and this package's layers leave marks where they write. Others may write in ways
    that leave none, and are compared, for which a GPU's host waits.
    """

    def __init__(self, model: nn.Module) -> None:
        self.buffers = [list(module.buffers(recurse=False)) for module in model.modules()]
        copies = iter(cloned([buffer for own in self.buffers for buffer in own]))
        self.copies = [[next(copies) for _ in own] for own in self.buffers]
        self.marks = [
            _marks(own) if _leaves_marks(module) else None
            for module, own in zip(model.modules(), self.buffers, strict=True)
        ]

    @torch.no_grad()
    def restore(self) -> None:
        """Write what has changed; an unchanged one may be part of a graph and is left alone."""
        for own, copies, marks in zip(self.buffers, self.copies, self.marks, strict=True):
            if marks is not None and _marks(own) == marks:
                continue
            for buffer, copy in zip(own, copies, strict=True):
                if not torch.equal(buffer, copy):
                    buffer.copy_(copy)


def _leaves_marks(module: nn.Module) -> bool:
    kind = type(module)
    counts = kind in _COUNTING and getattr(module, "num_batches_tracked", None) is not None
    return counts or kind.__module__.startswith("lowcurve.layers.")


def _marks(buffers: list[Tensor]) -> list[int]:
    return [write_count(buffer) for buffer in buffers]

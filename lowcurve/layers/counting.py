"""How do batch norms count their batches? One by one, or all those of a forward by one operation when it ends."""

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from lowcurve.compat import foreach


class _Waiting(threading.local):
    """The counters that a forward of this thread has to raise when it ends; None where nobody waits for that."""

    counters: list[Tensor] | None = None
    by_caller: bool = False


_waiting = _Waiting()


def count_batch(counter: Tensor, now: bool) -> None:
    """Raise a counter by 1, now or at the end of the `counted_together` around this call."""
    if now or torch.compiler.is_compiling() or _waiting.counters is None:
        counter.add_(1)
    else:
        _waiting.counters.append(counter)


@contextmanager
def counted_together() -> Iterator[None]:
    """Let batch norms inside this context raise their counters at its end, all at once."""
    if _waiting.by_caller:
        yield
        return
    before, _waiting.counters = _waiting.counters, []
    try:
        yield
    finally:
        counters, _waiting.counters = _waiting.counters, before
        raise_counters(counters)


@contextmanager
def counted_by_caller() -> Iterator[list[Tensor]]:
    """Let batch norms raise no counter inside this context: yield the list of those that are due, for the caller."""
    before, due = (_waiting.counters, _waiting.by_caller), []  # type: ignore[var-annotated]
    _waiting.counters, _waiting.by_caller = due, True
    try:
        yield due
    finally:
        _waiting.counters, _waiting.by_caller = before


def raise_counters(counters: Sequence[Tensor]) -> None:
    """Raise each counter by 1 for each time that it is named, all of a device by one operation."""
    times = Counter(map(id, counters))
    by_device: dict[torch.device, dict[int, Tensor]] = {}
    for counter in counters:
        by_device.setdefault(counter.device, {})[id(counter)] = counter
    for own in by_device.values():
        foreach("add_", list(own.values()), [times[key] for key in own])

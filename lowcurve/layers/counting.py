"""How do batch norms count their batches? One by one, or all those of a forward by one operation when it ends."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from lowcurve.compat import foreach


class _Waiting(threading.local):
    """The counters that a forward of this thread has to raise when it ends; None where nobody waits for that."""

    counters: list[Tensor] | None = None


_waiting = _Waiting()


def count(counter: Tensor, now: bool) -> None:
    """Raise a counter by 1, now or at the end of the `counted_together` around this call."""
    if now or torch.compiler.is_compiling() or _waiting.counters is None:
        counter.add_(1)
    else:
        _waiting.counters.append(counter)


@contextmanager
def counted_together() -> Iterator[None]:
    """Let batch norms inside this context raise their counters at its end, all at once."""
    before, _waiting.counters = _waiting.counters, []
    try:
        yield
    finally:
        counters, _waiting.counters = _waiting.counters, before
        times = Counter(map(id, counters))
        by_device: dict[torch.device, dict[int, Tensor]] = {}
        for counter in counters:
            by_device.setdefault(counter.device, {})[id(counter)] = counter
        for own in by_device.values():
            foreach("add_", list(own.values()), [times[key] for key in own])

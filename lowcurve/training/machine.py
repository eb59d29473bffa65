"""What makes a step on a CPU quicker: no denormal numbers, memory that is kept, as many threads as cores."""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from lowcurve.cores import THREADS, given_cores

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of <malloc.h>


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """Let the processor take numbers below 1e-38 for zero, as a GPU does; restore its mode on exit.

    A softplus with β = 1000 underflows at every other activation, and denormal numbers make a training step on a
    CPU nearly twice as long.

    >>> with flushed_denormals():
    ...     float(torch.tensor(1e-39) * 1)
    0.0
    """
    before = float(torch.tensor(1e-39) * 1) == 0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


@contextmanager
def kept_memory() -> Iterator[None]:
    """Let the C library keep what is freed for what is allocated next; on exit give it back to the system.

    A step of training takes and frees hundreds of megabytes. By default glibc returns the end of its heap each time
    and then waits for the system to fill fresh pages with zeros: nearly a tenth of a GradReg step. Elsewhere than on
    glibc nothing happens.
    """
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    if library is None or not hasattr(library, "mallopt"):
        yield
        return
    library.mallopt(_MMAP_THRESHOLD, 2**30)
    library.mallopt(_TRIM_THRESHOLD, 2**31 - 1)
    try:
        yield
    finally:
        library.mallopt(_MMAP_THRESHOLD, 2**25)  # where glibc's own adjustment ends
        library.mallopt(_TRIM_THRESHOLD, 2**26)
        library.malloc_trim(0)


@contextmanager
def given_threads() -> Iterator[None]:
    """Use no more threads than this process was given cores, unless OMP_NUM_THREADS says how many; restore on exit."""
    before = torch.get_num_threads()
    if THREADS not in os.environ:
        torch.set_num_threads(min(before, given_cores()))
    try:
        yield
    finally:
        torch.set_num_threads(before)

"""How long does something take on a device, and how much memory is alive there at its peak?

A GPU works on its own: its time is that between two events of its stream, waited for at the end.
"""

import time
from collections.abc import Callable

import torch


def seconds(device: torch.device, work: Callable[[], object]) -> float:
    """Run `work` and return its seconds on the device."""
    if device.type != "cuda":
        start = time.perf_counter()
        work()
        return time.perf_counter() - start
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    first.record()
    work()
    last.record()
    last.synchronize()
    return first.elapsed_time(last) / 1e3


def peak_on_gpu(device: torch.device, work: Callable[[], object]) -> float:
    """Run `work` and return by how many megabytes the tensors alive at its peak exceed those alive before."""
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    work()
    torch.cuda.synchronize(device)
    return (torch.cuda.max_memory_allocated(device) - before) / 2**20

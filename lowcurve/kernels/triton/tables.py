"""How does a kernel find the tensors of many layers? By tables of numbers and addresses, kept on the device.

A table is copied to the device when it is first needed, without a wait of the host. Parameters and buffers stay where
they are, and PyTorch gives the results of equal steps the same places, so that later steps find their tables.
"""

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor


def addresses(tensors: Sequence[Tensor | None], device: torch.device) -> Tensor:
    """Return where tensors are, 0 for one that is not there."""
    return number_table(tuple(0 if t is None else t.data_ptr() for t in tensors), torch.int64, device)


def number_table(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a table of numbers on a device."""
    return _both(values, dtype, device)[1]


@lru_cache(maxsize=4096)
def _both(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return a table in the host's memory and on the device; a captured graph copies the former again when it runs."""
    table = torch.tensor(values, dtype=dtype, pin_memory=device.type == "cuda")
    return table, table.to(device, non_blocking=True)

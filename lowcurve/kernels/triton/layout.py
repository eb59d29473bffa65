"""How is a tensor of channels cut into tiles? By its layout in memory, in parts by the number of channels."""

import math
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

# Programs to aim at: a few for each of the processors of a large GPU, which has about a hundred.
_PROGRAMS = 512
_MOST_PARTS = 64


class Layout(NamedTuple):
    """How a tensor (N, C, L) is cut; `numbers` and `per_part` go to a kernel by position, `tile` by name."""

    numbers: tuple[int, ...]
    per_part: int
    tile: dict[str, int]
    grid: tuple[int, int]

    @classmethod
    def of(cls, x: Tensor, most_parts: int = _MOST_PARTS) -> "Layout":
        """Cut x into parts of whole tiles; kernels that sum nothing may have any number of parts."""
        n, channels, length = len(x), x.shape[1], math.prod(x.shape[2:])
        last = channels > 1 and x.stride(1) == 1 and length > 1  # channels_last
        strides = (channels * length, 1, channels) if last else (channels * length, length, 1)
        columns = min(triton.next_power_of_2(channels), 32) if last or length == 1 else 1
        rows, positions = 1024 // columns, n * length
        groups = triton.cdiv(channels, columns)
        parts = triton.next_power_of_2(min(most_parts, max(1, _PROGRAMS // groups), triton.cdiv(positions, rows)))
        per_part = triton.cdiv(triton.cdiv(positions, parts), rows) * rows
        tile = {"PARTS": parts, "P": rows, "C": columns}
        return cls((positions, channels, length, *strides), per_part, tile, (groups, parts))


def alike(x: Tensor, *others: Tensor | None) -> tuple[Any, ...]:
    """Return x in row-major or channels_last order, and the others in x's."""
    rows_last = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
    x = x if rows_last or x.is_contiguous() else x.contiguous()
    return x, *(
        t if t is None or t.stride() == x.stride() else torch.empty_like(x, dtype=t.dtype).copy_(t) for t in others
    )


def log_beta_on(x: Tensor, log_beta: Tensor | None) -> Tensor | None:
    """Return log β on x's device, in float32."""
    return None if log_beta is None else log_beta.to(x.device, torch.float32)

"""Which tensors can the loops take as they are, and in which order in memory?"""

import math
import sys
from typing import Any, overload

import torch
from torch import Tensor

from lowcurve.kernels.cpu.library import BLOCK, COLUMNS, LIBRARY, PARTS
from lowcurve.kernels.engine import LARGEST_EXPONENT


def takes(*tensors: Any) -> bool:
    """Whether the loops were compiled and all tensors are float32 numbers in memory, as they are."""
    return LIBRARY is not None and all(
        not isinstance(t, Tensor) or (t.dtype is torch.float32 and t.layout is torch.strided and not t.is_neg())
        for t in tensors
    )


def sharpness(log_beta: Tensor) -> float:
    """Return β as a number, without an operation of PyTorch; above e⁸⁸, near float32's largest, all count as that.

    It is never quite 0, by which a diverging training would divide.
    """
    return max(math.exp(min(float(log_beta), LARGEST_EXPONENT)), sys.float_info.min)


def shape_of(x: Tensor) -> tuple[int, int, int, int] | None:
    """Return samples, channels, values per channel of a sample, and whether channels alternate; None for other layouts.

    For channels_last memory a sample is as many neighboring positions as fit in the loops' columns.
    """
    if x.numel() == 0 or x.dim() < 2:
        return None
    n, channels = x.shape[:2]
    length = math.prod(x.shape[2:])
    if x.is_contiguous():
        return n, channels, length, 0
    if not has_channels_last(x):
        return None
    positions = n * length
    together = math.gcd(positions, 1 << max(0, COLUMNS // channels).bit_length() - 1) if channels <= COLUMNS else 1
    return positions // together, channels, together, 1


def room_for_sums(x: Tensor) -> Tensor:
    """Room for four kinds of sums over each part of each channel."""
    return torch.empty(4 * PARTS * x.shape[1], dtype=torch.float64)


def room_for_blocks(y: Tensor, values: int | None = None) -> Tensor:
    """Room for a sum over each block of so many values, by default as many as y has."""
    return y.new_empty((y.numel() if values is None else values) // BLOCK + 1)


def packed(tensor: Tensor | None) -> Tensor | None:
    """Return a vector without gaps in memory."""
    return tensor if tensor is None or tensor.is_contiguous() else tensor.contiguous()


def dense(x: Tensor) -> Tensor:
    """Return x itself where its elements fill one stretch of memory in any order, else a contiguous copy."""
    filled = x.is_contiguous() or has_channels_last(x) or torch.empty_like(x).stride() == x.stride()
    return x if filled else x.contiguous()


def has_channels_last(x: Tensor) -> bool:
    """Whether these are images in channels_last memory."""
    return x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)


def alike(y: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    """Give all tensors y's order in memory."""
    y = dense(y)
    return y, *(like(y, t) for t in others)


@overload
def like(y: Tensor, tensor: Tensor) -> Tensor: ...
@overload
def like(y: Tensor, tensor: Tensor | None) -> Tensor | None: ...
def like(y: Tensor, tensor: Tensor | None) -> Tensor | None:
    """Return a tensor in y's order in memory."""
    return tensor if tensor is None or tensor.stride() == y.stride() else torch.empty_like(y).copy_(tensor)

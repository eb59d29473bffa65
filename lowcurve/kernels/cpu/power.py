"""The singular vectors of many convolutions in one compiled call, a layer per thread."""

import ctypes
from typing import Any

import torch
from torch import Tensor

from lowcurve.kernels.cpu.library import LIBRARY, LayerNumbers


def iterates(linear_map: Any, *tensors: Tensor) -> bool:
    """Whether the loop can follow a map: a plain convolution of images in float32 on the CPU."""
    if LIBRARY is None:
        return False
    plain = linear_map.groups == 1 and not linear_map.circular and linear_map.dilation == (1, 1)
    return plain and all(
        t.dtype is torch.float32 and t.device.type == "cpu" and t.layout is torch.strided for t in tensors
    )


def follow(
    maps: list[Any], weights: list[Tensor], left: list[Tensor], right: list[Tensor], slopes: list[Tensor] | None = None
) -> list[Tensor]:
    """Replace u by the best vector in the ten dimensions that powers of W Wᵀ span from it, v by Wᵀu, u by W v.

    Where u has not settled there, it is looked for in the ten dimensions that follow, too. Both get unit length.
    Return each ∂⟨u, W v⟩/∂W, written to `slopes` where they are given.
    """
    assert LIBRARY is not None
    slopes = [torch.empty_like(weight) for weight in weights] if slopes is None else slopes
    mixed = [not s.is_contiguous() for s in slopes]
    used = list(zip(*(_laid_out(tensors, mixed) for tensors in (weights, left, right, slopes)), strict=True))
    layers = (LayerNumbers * len(maps))(*map(_layer, maps, used, mixed))
    size = max(LIBRARY.lowcurve_power_room(ctypes.byref(layer)) for layer in layers)
    threads = min(torch.get_num_threads(), len(layers))
    room = weights[0].new_empty(threads * size)
    LIBRARY.lowcurve_power(len(layers), threads, ctypes.addressof(layers), room.data_ptr(), size)
    for (_, *found), *given in zip(used, left, right, slopes, strict=True):
        for own, into in zip(found, given, strict=True):
            if own is not into:
                into.copy_(own)
    torch.autograd.graph.increment_version([*left, *right])
    return slopes


def _laid_out(tensors: list[Tensor], mixed: list[bool]) -> list[Tensor]:
    """Give each tensor, of four dimensions, the layout that its layer has."""
    layouts = (torch.contiguous_format, torch.channels_last)
    return [t.contiguous(memory_format=layouts[m]) for t, m in zip(tensors, mixed, strict=True)]


def _layer(m: Any, tensors: tuple[Tensor, ...], mixed: bool) -> LayerNumbers:
    above, before = (pair[0] for pair in m.padding)
    sizes = (m.input_shape[0], m.output_shape[0], *m.input_shape[1:], *m.output_shape[1:], *m.kernel, *m.stride)
    return LayerNumbers(*(tensor.data_ptr() for tensor in tensors), *sizes, above, before, int(mixed))

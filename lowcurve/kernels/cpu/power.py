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


def follow(maps: list[Any], weights: list[Tensor], left: list[Tensor], right: list[Tensor]) -> list[Tensor]:
    """Replace u by the best vector in the ten dimensions that powers of W Wᵀ span from it, v by Wᵀu, u by W v.

    Where u has not settled there, it is looked for in the ten dimensions that follow, too. Both get unit length.
    Return each ∂⟨u, W v⟩/∂W.
    """
    weights, u, v = ([tensor.contiguous() for tensor in tensors] for tensors in (weights, left, right))
    slopes = [torch.empty_like(weight) for weight in weights]
    layers = (LayerNumbers * len(maps))(*map(_layer, maps, weights, u, v, slopes))
    assert LIBRARY is not None
    rooms = [LIBRARY.lowcurve_power_room(ctypes.byref(layer)) for layer in layers]
    scratch = weights[0].new_empty(sum(rooms)).split(rooms)
    for layer, own in zip(layers, scratch, strict=True):
        layer.scratch = own.data_ptr()
    LIBRARY.lowcurve_power(len(layers), torch.get_num_threads(), ctypes.addressof(layers))
    for found, into in zip((*u, *v), (*left, *right), strict=True):
        if found is not into:  # channels_last
            into.copy_(found)
    torch.autograd.graph.increment_version([*left, *right])
    return slopes


def _layer(m: Any, *tensors: Tensor) -> LayerNumbers:
    above, before = (pair[0] for pair in m.padding)
    sizes = (m.input_shape[0], m.output_shape[0], *m.input_shape[1:], *m.output_shape[1:], *m.kernel, *m.stride)
    return LayerNumbers(*(tensor.data_ptr() for tensor in tensors), None, *sizes, above, before)

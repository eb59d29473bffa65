"""Where does a search for singular vectors start? At a fixed vector that has a part in every direction."""

import math
from functools import lru_cache

import torch
from torch import Tensor


def grain(like: Tensor, length: float) -> Tensor:
    """Return a fixed vector of that length with a part in every direction, shaped as `like`: (1, channels, ...).

    Half of it is constant over each channel: where the singular vectors of a convolution go as it learns.
    """
    return _grain(tuple(like.shape), length, like.dtype, like.device)


@lru_cache(maxsize=16)
def joined_grain(shapes: tuple[torch.Size, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the grains of unit length of many shapes, one after the other."""
    return torch.cat([_grain(tuple(shape), 1.0, dtype, device).flatten() for shape in shapes])


@lru_cache(maxsize=256)
def _grain(shape: tuple[int, ...], length: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    smooth, rough = (_noise((*shape[:2], *(1 for _ in shape[2:])), device).expand(shape), _noise(shape, device))
    mixed = smooth / smooth.norm() + rough / rough.norm()
    return (mixed * (length / mixed.norm())).to(dtype)


def _noise(shape: tuple[int, ...], device: torch.device) -> Tensor:
    places = torch.arange(1, math.prod(shape) + 1, dtype=torch.float64, device=device)
    noise = places.mul(12.9898).sin().mul(43758.5453)
    return (noise - noise.floor() - 0.5).view(shape)

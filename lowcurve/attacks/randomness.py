"""Which random numbers does a sample get? Its own, fixed by seed, content and trial, whatever batch it is in.

Counter-based: number j of a stream is a hash of (key, j), computed for all samples at once in integers, so
there is no generator state to carry, nothing depends on the order or size of a batch, and all devices agree.
"""

import math

import torch
from torch import Tensor


def _signed(word: int) -> int:
    """Read an unsigned 64-bit word as the signed integer of the same bits, torch's own kind."""
    return word - (1 << 64) if word >> 63 else word


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_FIRST = _signed(0xBF58476D1CE4E5B9)
_SECOND = _signed(0x94D049BB133111EB)


def _shift(z: Tensor, count: int) -> Tensor:
    """Shift right and fill with zeros; torch's own shift of a signed integer copies the sign."""
    return (z >> count) & ((1 << (64 - count)) - 1)


def _mix(z: Tensor) -> Tensor:
    """Scramble 64 bits with the finalizer of SplitMix64 (Steele, Lea, Flood 2014), modulo 2⁶⁴."""
    z = (z ^ _shift(z, 30)) * _FIRST
    z = (z ^ _shift(z, 27)) * _SECOND
    return z ^ _shift(z, 31)


def keys(x: Tensor, seed: int) -> Tensor:
    """Return one int64 key per sample of `x`, a hash of the seed and of the bits of the sample.

    >>> x = torch.rand(5, 3)
    >>> bool((keys(x, 0)[2:] == keys(x[2:], 0)).all()), bool((keys(x, 0) == keys(x, 1)).any())
    (True, False)
    """
    flat = x.detach().flatten(1).contiguous()
    bits = flat.view(torch.int64 if x.dtype == torch.float64 else torch.int32).to(torch.int64)
    position = torch.arange(1, bits.shape[1] + 1, device=x.device) * _GOLDEN
    return derive_keys(_mix(bits + position).sum(1), seed)


def derive_keys(key: Tensor, counter: int | Tensor) -> Tensor:
    """Derive new keys from `key` and a counter (a trial, an iteration), one for all or one per sample."""
    return _mix(key + torch.as_tensor(counter, device=key.device) * _FIRST + _GOLDEN)


def uniform(key: Tensor, count: int) -> Tensor:
    """Return (N, count) numbers in [0, 1) in float64, 53 random bits each."""
    counter = torch.arange(1, count + 1, device=key.device) * _GOLDEN
    return _shift(_mix(key[:, None] + counter), 11).to(torch.float64) * 2.0**-53


def normal(key: Tensor, count: int) -> Tensor:
    """Return (N, count) standard normal numbers in float64 (Box and Muller 1958)."""
    radius = (-2 * torch.log1p(-uniform(key, count))).sqrt()
    return radius * torch.cos(2 * math.pi * uniform(derive_keys(key, 1), count))


def signs(key: Tensor, count: int) -> Tensor:
    """Return (N, count) fair signs, -1.0 or +1.0, in float64."""
    return torch.where(uniform(key, count) < 0.5, -1.0, 1.0).to(torch.float64)

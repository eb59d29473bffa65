r"""The value of training-mode batch norm on GPUs, alone or in one pass with a residual sum and a softplus.

.. math:: y = s_0(\text{factor} (w \hat x + b + \text{other}); β) + \text{shift}, \qquad \hat x = (x - μ) r,

or y = w x̂ + b without activation. One kernel sums over channels, the next adds the parts up and writes the result.
"""

import triton
import triton.language as tl

from lowcurve.kernels.triton.elementary import sharpness, softplus_
from lowcurve.kernels.triton.tiles import loaded, mine, per_channel, store, store_sum, tile


@triton.jit
def statistics_kernel(
    x, sums, positions, channels, length, stride_n, stride_c, stride_l, per_part, PARTS: tl.constexpr,
    P: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """sums: the mean of each part, and its Σ (x - mean)², joined tile by tile (Chan et al. 1983)."""
    c, part, first, last = mine(per_part, positions, C)
    count = 0.0
    mean = tl.zeros([C], tl.float32)
    squares = tl.zeros([C], tl.float32)
    for start in range(first, last, P):
        p = start + tl.arange(0, P)
        at, inside = tile(p, c, last, channels, length, stride_n, stride_c, stride_l)
        value = loaded(x, at, inside)
        more = tl.minimum(last - start, P).to(tl.float32)
        center = tl.sum(value, axis=0) / more
        apart = tl.where(inside, value - center[None, :], 0.0)
        away = center - mean
        total = count + more
        mean += away * (more / total)
        squares += tl.sum(apart * apart, axis=0) + away * away * (count * more / total)
        count = total
    store_sum(sums, 0, part, c, channels, mean, PARTS)
    store_sum(sums, 1, part, c, channels, squares, PARTS)


@triton.jit
def _moments(sums, c, channels, positions, per_part, PARTS: tl.constexpr):
    """Return mean and Σ (x - mean)² of channels c from those of their parts."""
    parts = tl.arange(0, PARTS)
    left = positions - parts * per_part
    counts = tl.where(left < 0, 0, tl.where(left > per_part, per_part, left)).to(tl.float32)[:, None]
    exists = (c < channels)[None, :]
    means = tl.load(sums + parts[:, None] * channels + c[None, :], exists, 0.0)
    squares = tl.load(sums + (PARTS + parts)[:, None] * channels + c[None, :], exists, 0.0)
    mean = tl.sum(counts * means, axis=0) / positions
    away = means - mean[None, :]
    return mean, tl.sum(squares + counts * away * away, axis=0)


@triton.jit
def value_kernel(
    x, weight, bias, other, log_beta, y, mean, invstd, running_mean, running_var, sums, momentum, eps, factor, shift,
    positions, channels, length, stride_n, stride_c, stride_l, per_part, WEIGHT: tl.constexpr, BIAS: tl.constexpr,
    OTHER: tl.constexpr, ACTIVATE: tl.constexpr, MEAN: tl.constexpr, VAR: tl.constexpr, PARTS: tl.constexpr,
    P: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """y; the first part also writes mean and 1/std and moves the running statistics."""
    c, part, first, last = mine(per_part, positions, C)
    exists = c < channels
    center, squares = _moments(sums, c, channels, positions, per_part, PARTS)
    gain = 1.0 / tl.sqrt(squares / positions + eps)
    if part == 0:
        tl.store(mean + c, center, exists)
        tl.store(invstd + c, gain, exists)
        if MEAN:
            old = loaded(running_mean, c, exists)
            store(running_mean, c, old + momentum * (center - old), exists)
        if VAR:
            old = loaded(running_var, c, exists)
            unbiased = squares / tl.maximum(positions - 1, 1)
            store(running_var, c, old + momentum * (unbiased - old), exists)
    scale = gain * per_channel(weight, c, channels, WEIGHT, 1.0)
    offset = per_channel(bias, c, channels, BIAS, 0.0)
    for start in range(first, last, P):
        p = start + tl.arange(0, P)
        at, inside = tile(p, c, last, channels, length, stride_n, stride_c, stride_l)
        value = (loaded(x, at, inside) - center[None, :]) * scale[None, :] + offset[None, :]
        if OTHER:
            value += loaded(other, at, inside)
        if ACTIVATE:
            value = softplus_(factor * value, sharpness(log_beta), shift)
        store(y, at, value, inside)

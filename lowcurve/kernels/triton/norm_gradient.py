"""The gradient of training-mode batch norm on GPUs, with what follows it: one kernel of sums, one of results.

The formulas are those of `reference/norm.py`, in the notation of `cpu/channels.h`.
"""

import triton
import triton.language as tl

from lowcurve.kernels.triton.elementary import entropy_deficit, sharpness, tau_
from lowcurve.kernels.triton.tiles import loaded, mine, per_channel, store, store_sum, tile, whole_sum


@triton.jit
def gradient_sums_kernel(
    g, y, x, log_beta, mean, sums, factor, shift, positions, channels, length, stride_n, stride_c, stride_l, per_part,
    ACTIVATE: tl.constexpr, WITH_BETA: tl.constexpr, PARTS: tl.constexpr, P: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """sums: Σ t, Σ t (x - μ) and Σ g (log 2 - H(σ)), for t = factor g σ the gradient of what the softplus is of."""
    c, part, first, last = mine(per_part, positions, C)
    center = tl.load(mean + c, c < channels, 0.0)
    total = tl.zeros([C], tl.float32)
    product = tl.zeros([C], tl.float32)
    deficit = tl.zeros([C], tl.float32)
    for start in range(first, last, P):
        p = start + tl.arange(0, P)
        at, inside = tile(p, c, last, channels, length, stride_n, stride_c, stride_l)
        t = loaded(g, at, inside)
        if ACTIVATE:
            beta = sharpness(log_beta)
            centered = loaded(y, at, inside) - shift
            tau = tau_(centered, beta)
            if WITH_BETA:
                deficit += tl.sum(tl.where(inside, t * entropy_deficit(tau, beta * centered), 0.0), axis=0)
            t = factor * t * (0.5 + 0.5 * tau)
        away = loaded(x, at, inside) - center[None, :]
        total += tl.sum(tl.where(inside, t, 0.0), axis=0)
        product += tl.sum(tl.where(inside, t * away, 0.0), axis=0)
    store_sum(sums, 0, part, c, channels, total, PARTS)
    store_sum(sums, 1, part, c, channels, product, PARTS)
    if WITH_BETA:
        store_sum(sums, 2, part, c, channels, deficit, PARTS)


@triton.jit
def _all_channels(sums, channels, PARTS: tl.constexpr, C: tl.constexpr):
    """Add up the third kind of sums over all parts and channels."""
    total = tl.zeros([C], tl.float32)
    for start in range(0, channels, C):
        total += whole_sum(sums, start + tl.arange(0, C), channels, 2, PARTS)
    return tl.sum(total)


@triton.jit
def gradient_kernel(
    g, y, x, weight, log_beta, mean, invstd, in_x, in_other, in_weight, in_bias, in_beta, sums, factor, shift,
    positions, channels, length, stride_n, stride_c, stride_l, per_part, WEIGHT: tl.constexpr, OTHER: tl.constexpr,
    ACTIVATE: tl.constexpr, WITH_BETA: tl.constexpr, PARTS: tl.constexpr, P: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """in_x = w r P(t), in_other = t; the first part also writes in_weight = Σ t x̂, in_bias = Σ t, the first in_beta."""
    c, part, first, last = mine(per_part, positions, C)
    exists = c < channels
    center = tl.load(mean + c, exists, 0.0)
    gain = tl.load(invstd + c, exists, 0.0)
    total = whole_sum(sums, c, channels, 0, PARTS)
    product = whole_sum(sums, c, channels, 1, PARTS) * gain
    if part == 0:
        tl.store(in_weight + c, product, exists)
        tl.store(in_bias + c, total, exists)
        if WITH_BETA:  # noqa: SIM102 (the compiler's own branch)
            if tl.program_id(0) == 0:
                tl.store(in_beta, _all_channels(sums, channels, PARTS, C) / sharpness(log_beta))
    scale = gain * per_channel(weight, c, channels, WEIGHT, 1.0)
    slope = product / positions * gain
    average = total / positions
    for start in range(first, last, P):
        p = start + tl.arange(0, P)
        at, inside = tile(p, c, last, channels, length, stride_n, stride_c, stride_l)
        t = loaded(g, at, inside)
        if ACTIVATE:
            centered = loaded(y, at, inside) - shift
            t = factor * t * (0.5 + 0.5 * tau_(centered, sharpness(log_beta)))
        if OTHER:
            store(in_other, at, t, inside)
        away = loaded(x, at, inside) - center[None, :]
        found = (t - average[None, :] - away * slope[None, :]) * scale[None, :]
        store(in_x, at, found, inside)

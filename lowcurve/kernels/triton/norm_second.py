"""The gradient of the gradient of training-mode batch norm on GPUs, with what follows it: sums, then results.

The formulas are those of `reference/norm.py`, in the notation of `cpu/channels.h`.
"""

import triton
import triton.language as tl

from lowcurve.kernels.triton.elementary import sharpness, tau_
from lowcurve.kernels.triton.tiles import loaded, mine, per_channel, store, store_sum, tile, whole_sum


@triton.jit
def second_sums_kernel(
    v, v_other, g, y, x, log_beta, mean, t_sum, sums, factor, shift, positions, channels, length, stride_n, stride_c,
    stride_l, per_part, OTHER: tl.constexpr, ACTIVATE: tl.constexpr, PARTS: tl.constexpr, P: tl.constexpr,
    C: tl.constexpr,
):  # fmt: skip
    """sums: Σ v, Σ v (x - μ), Σ v (t - M(t)); with e = factor g β (1 - σ)(y - shift): Σ v e, Σ (x - μ) e, Σ e, Σ v′ e.

    Of the last four the next kernel makes the gradient in log β, Σ h e, where h is the gradient in t and v′ that of
    in_other.
    """
    c, part, first, last = mine(per_part, positions, C)
    exists = c < channels
    center = tl.load(mean + c, exists, 0.0)
    average = tl.load(t_sum + c, exists, 0.0) / positions
    total = tl.zeros([C], tl.float32)
    with_x = tl.zeros([C], tl.float32)
    with_t = tl.zeros([C], tl.float32)
    outer_e = tl.zeros([C], tl.float32)
    away_e = tl.zeros([C], tl.float32)
    plain_e = tl.zeros([C], tl.float32)
    other_e = tl.zeros([C], tl.float32)
    for start in range(first, last, P):
        p = start + tl.arange(0, P)
        at, inside = tile(p, c, last, channels, length, stride_n, stride_c, stride_l)
        outer = loaded(v, at, inside)
        t = loaded(g, at, inside)
        away = loaded(x, at, inside) - center[None, :]
        if ACTIVATE:
            beta = sharpness(log_beta)
            centered = loaded(y, at, inside) - shift
            tau = tau_(centered, beta)
            e = tl.where(inside, factor * t * beta * (0.5 - 0.5 * tau) * centered, 0.0)
            t = factor * t * (0.5 + 0.5 * tau)
            outer_e += tl.sum(outer * e, axis=0)
            away_e += tl.sum(away * e, axis=0)
            plain_e += tl.sum(e, axis=0)
            if OTHER:
                other_e += tl.sum(loaded(v_other, at, inside) * e, axis=0)
        total += tl.sum(outer, axis=0)  # 0 where nothing was loaded
        with_x += tl.sum(outer * away, axis=0)
        with_t += tl.sum(outer * (t - average[None, :]), axis=0)
    store_sum(sums, 0, part, c, channels, total, PARTS)
    store_sum(sums, 1, part, c, channels, with_x, PARTS)
    store_sum(sums, 2, part, c, channels, with_t, PARTS)
    if ACTIVATE:
        store_sum(sums, 3, part, c, channels, outer_e, PARTS)
        store_sum(sums, 4, part, c, channels, away_e, PARTS)
        store_sum(sums, 5, part, c, channels, plain_e, PARTS)
        store_sum(sums, 6, part, c, channels, other_e, PARTS)


@triton.jit
def _all_channels(
    sums, weight, invstd, channels, positions, WEIGHT: tl.constexpr, PARTS: tl.constexpr, C: tl.constexpr
):
    """Make the gradient in log β of the sums of all channels: Σ h e, with h = w r (v - M(v) - x̂ M(v x̂)) + v′."""
    total = tl.zeros([C], tl.float32)
    for start in range(0, channels, C):
        c = start + tl.arange(0, C)
        r = tl.load(invstd + c, c < channels, 0.0)
        scale = r * per_channel(weight, c, channels, WEIGHT, 1.0)
        m_v = whole_sum(sums, c, channels, 0, PARTS) / positions
        a_v = whole_sum(sums, c, channels, 1, PARTS) * r / positions
        total += scale * whole_sum(sums, c, channels, 3, PARTS)
        total -= scale * a_v * r * whole_sum(sums, c, channels, 4, PARTS)
        total += whole_sum(sums, c, channels, 6, PARTS) - scale * m_v * whole_sum(sums, c, channels, 5, PARTS)
    return tl.sum(total)


@triton.jit
def second_kernel(
    v, v_other, g, y, x, weight, log_beta, mean, invstd, t_hat, t_sum, in_g, in_y, in_x, in_weight, in_beta, sums,
    factor, shift, positions, channels, length, stride_n, stride_c, stride_l, per_part, WEIGHT: tl.constexpr,
    OTHER: tl.constexpr, ACTIVATE: tl.constexpr, PARTS: tl.constexpr, P: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Gradients of ⟨v, in_x⟩ + ⟨v′, in_other⟩ in g, y, x; the first part writes those in w and log β."""
    c, part, first, last = mine(per_part, positions, C)
    exists = c < channels
    center = tl.load(mean + c, exists, 0.0)
    r = tl.load(invstd + c, exists, 0.0)
    average = tl.load(t_sum + c, exists, 0.0) / positions
    a_t = tl.load(t_hat + c, exists, 0.0) / positions
    m_v = whole_sum(sums, c, channels, 0, PARTS) / positions
    a_v = whole_sum(sums, c, channels, 1, PARTS) * r / positions
    s = whole_sum(sums, c, channels, 2, PARTS) / positions - a_v * a_t
    scale = r * per_channel(weight, c, channels, WEIGHT, 1.0)
    if part == 0:
        tl.store(in_weight + c, r * s * positions, exists)
        if ACTIVATE:  # noqa: SIM102 (the compiler's own branch)
            if tl.program_id(0) == 0:
                tl.store(in_beta, _all_channels(sums, weight, invstd, channels, positions, WEIGHT, PARTS, C))
    for start in range(first, last, P):
        p = start + tl.arange(0, P)
        at, inside = tile(p, c, last, channels, length, stride_n, stride_c, stride_l)
        outer = loaded(v, at, inside)
        grad = loaded(g, at, inside)
        away = loaded(x, at, inside) - center[None, :]
        h = scale[None, :] * (outer - (a_v * r)[None, :] * away - m_v[None, :])
        t = grad
        slope = 1.0
        if ACTIVATE:
            beta = sharpness(log_beta)
            tau = tau_(loaded(y, at, inside) - shift, beta)
            if OTHER:
                h += loaded(v_other, at, inside)
            bend = h * grad * factor * beta * (0.5 - 0.5 * tau)
            store(in_y, at, bend, inside)
            slope = factor * (0.5 + 0.5 * tau)
            t = grad * slope
        store(in_g, at, slope * h, inside)
        moved = a_t[None, :] * (outer - m_v[None, :]) + a_v[None, :] * (t - average[None, :])
        moved += ((s - 2 * a_v * a_t) * r)[None, :] * away
        store(in_x, at, -(scale * r)[None, :] * moved, inside)

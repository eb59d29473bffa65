r"""Training-mode batch norm on GPUs, alone or in one pass with a residual sum and a softplus.

.. math:: y = s_0(\text{factor} (w \hat x + b + \text{other}); β) + \text{shift}, \qquad \hat x = (x - μ) r,

or y = w x̂ + b without activation. Two kernels each for value, gradient and second order: one sums over channels, in
parts that no atomic operation joins, so that results do not change from call to call; the next adds the parts up and
writes the result. The formulas are those of `reference.py`, in the notation of `cpu/_channels.h`. A tensor is (N, C, L)
in any order of memory: a program has a tile of positions p = n L + l and channels c.
"""

import triton
import triton.language as tl

from lowcurve.kernels.triton.elementary import entropy_deficit, sharpness, softplus_, tau_


@triton.jit
def _tile(p, c, positions, channels, length, stride_n, stride_c, stride_l):
    """Return the addresses of a tile relative to a tensor's first value, and which of them exist."""
    at = (p // length).to(tl.int64) * stride_n + (p % length).to(tl.int64) * stride_l
    return at[:, None] + c[None, :].to(tl.int64) * stride_c, (p < positions)[:, None] & (c < channels)[None, :]


@triton.jit
def _whole(sums, c, channels, kind, PARTS: tl.constexpr):
    """Add up the parts of one kind of sum, for channels c."""
    parts = tl.arange(0, PARTS)
    at = (kind * PARTS + parts)[:, None] * channels + c[None, :]
    return tl.sum(tl.load(sums + at, (c < channels)[None, :], 0.0), axis=0)


@triton.jit
def _per_channel(given, c, channels, GIVEN: tl.constexpr, missing: tl.constexpr):
    """Load one value per channel, or take `missing` for all where the tensor is not given."""
    if GIVEN:
        return tl.load(given + c, c < channels, 0.0).to(tl.float32)
    else:  # noqa: RET505 (a branch of the compiler's, not of the program's)
        return tl.full([c.shape[0]], missing, tl.float32)


@triton.jit
def statistics_kernel(
    x,
    sums,
    positions,
    channels,
    length,
    stride_n,
    stride_c,
    stride_l,
    per_part,
    PARTS: tl.constexpr,
    P: tl.constexpr,
    C: tl.constexpr,
):
    """sums: the mean of each part, and its Σ (x - mean)², joined tile by tile (Chan et al. 1983)."""
    c = tl.program_id(0) * C + tl.arange(0, C)
    part = tl.program_id(1)
    first = part * per_part
    last = tl.minimum(first + per_part, positions)
    count = 0.0
    mean = tl.zeros([C], tl.float32)
    squares = tl.zeros([C], tl.float32)
    for start in range(first, last, P):
        p = start + tl.arange(0, P)
        at, inside = _tile(p, c, last, channels, length, stride_n, stride_c, stride_l)
        value = tl.load(x + at, inside, 0.0).to(tl.float32)
        more = tl.minimum(last - start, P).to(tl.float32)
        center = tl.sum(value, axis=0) / more
        apart = tl.where(inside, value - center[None, :], 0.0)
        away = center - mean
        total = count + more
        mean += away * (more / total)
        squares += tl.sum(apart * apart, axis=0) + away * away * (count * more / total)
        count = total
    tl.store(sums + part * channels + c, mean, c < channels)
    tl.store(sums + (PARTS + part) * channels + c, squares, c < channels)


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
    x,
    weight,
    bias,
    other,
    log_beta,
    y,
    mean,
    invstd,
    running_mean,
    running_var,
    sums,
    momentum,
    eps,
    factor,
    shift,
    positions,
    channels,
    length,
    stride_n,
    stride_c,
    stride_l,
    per_part,
    WEIGHT: tl.constexpr,
    BIAS: tl.constexpr,
    OTHER: tl.constexpr,
    ACTIVATE: tl.constexpr,
    MEAN: tl.constexpr,
    VAR: tl.constexpr,
    PARTS: tl.constexpr,
    P: tl.constexpr,
    C: tl.constexpr,
):
    """y; the first part also writes mean and 1/std and moves the running statistics."""
    c = tl.program_id(0) * C + tl.arange(0, C)
    part = tl.program_id(1)
    exists = c < channels
    center, squares = _moments(sums, c, channels, positions, per_part, PARTS)
    gain = 1.0 / tl.sqrt(squares / positions + eps)
    if part == 0:
        tl.store(mean + c, center, exists)
        tl.store(invstd + c, gain, exists)
        if MEAN:
            old = tl.load(running_mean + c, exists, 0.0).to(tl.float32)
            tl.store(running_mean + c, (old + momentum * (center - old)).to(running_mean.dtype.element_ty), exists)
        if VAR:
            old = tl.load(running_var + c, exists, 0.0).to(tl.float32)
            unbiased = squares / tl.maximum(positions - 1, 1)
            tl.store(running_var + c, (old + momentum * (unbiased - old)).to(running_var.dtype.element_ty), exists)
    scale = gain * _per_channel(weight, c, channels, WEIGHT, 1.0)
    offset = _per_channel(bias, c, channels, BIAS, 0.0)
    first = part * per_part
    last = tl.minimum(first + per_part, positions)
    for start in range(first, last, P):
        p = start + tl.arange(0, P)
        at, inside = _tile(p, c, last, channels, length, stride_n, stride_c, stride_l)
        value = (tl.load(x + at, inside, 0.0).to(tl.float32) - center[None, :]) * scale[None, :] + offset[None, :]
        if OTHER:
            value += tl.load(other + at, inside, 0.0).to(tl.float32)
        if ACTIVATE:
            value = softplus_(factor * value, sharpness(log_beta), shift)
        tl.store(y + at, value.to(y.dtype.element_ty), inside)


@triton.jit
def gradient_sums_kernel(
    g,
    y,
    x,
    log_beta,
    mean,
    sums,
    factor,
    shift,
    positions,
    channels,
    length,
    stride_n,
    stride_c,
    stride_l,
    per_part,
    ACTIVATE: tl.constexpr,
    WITH_BETA: tl.constexpr,
    PARTS: tl.constexpr,
    P: tl.constexpr,
    C: tl.constexpr,
):
    """sums: Σ t, Σ t (x - μ) and Σ g (log 2 - H(σ)), for t = factor g σ the gradient of what the softplus is of."""
    c = tl.program_id(0) * C + tl.arange(0, C)
    part = tl.program_id(1)
    center = tl.load(mean + c, c < channels, 0.0)
    total = tl.zeros([C], tl.float32)
    product = tl.zeros([C], tl.float32)
    deficit = tl.zeros([C], tl.float32)
    first = part * per_part
    last = tl.minimum(first + per_part, positions)
    for start in range(first, last, P):
        p = start + tl.arange(0, P)
        at, inside = _tile(p, c, last, channels, length, stride_n, stride_c, stride_l)
        t = tl.load(g + at, inside, 0.0).to(tl.float32)
        if ACTIVATE:
            beta = sharpness(log_beta)
            centered = tl.load(y + at, inside, 0.0).to(tl.float32) - shift
            tau = tau_(centered, beta)
            if WITH_BETA:
                deficit += tl.sum(tl.where(inside, t * entropy_deficit(tau, beta * centered), 0.0), axis=0)
            t = factor * t * (0.5 + 0.5 * tau)
        away = tl.load(x + at, inside, 0.0).to(tl.float32) - center[None, :]
        total += tl.sum(tl.where(inside, t, 0.0), axis=0)
        product += tl.sum(tl.where(inside, t * away, 0.0), axis=0)
    tl.store(sums + part * channels + c, total, c < channels)
    tl.store(sums + (PARTS + part) * channels + c, product, c < channels)
    if WITH_BETA:
        tl.store(sums + (2 * PARTS + part) * channels + c, deficit, c < channels)


@triton.jit
def gradient_kernel(
    g,
    y,
    x,
    weight,
    log_beta,
    mean,
    invstd,
    in_x,
    in_other,
    in_weight,
    in_bias,
    deficits,
    sums,
    factor,
    shift,
    positions,
    channels,
    length,
    stride_n,
    stride_c,
    stride_l,
    per_part,
    WEIGHT: tl.constexpr,
    OTHER: tl.constexpr,
    ACTIVATE: tl.constexpr,
    WITH_BETA: tl.constexpr,
    PARTS: tl.constexpr,
    P: tl.constexpr,
    C: tl.constexpr,
):
    """in_x = w r P(t), in_other = t; the first part also writes in_weight = Σ t x̂, in_bias = Σ t and the deficits."""
    c = tl.program_id(0) * C + tl.arange(0, C)
    part = tl.program_id(1)
    exists = c < channels
    center = tl.load(mean + c, exists, 0.0)
    gain = tl.load(invstd + c, exists, 0.0)
    total = _whole(sums, c, channels, 0, PARTS)
    product = _whole(sums, c, channels, 1, PARTS) * gain
    if part == 0:
        tl.store(in_weight + c, product, exists)
        tl.store(in_bias + c, total, exists)
        if WITH_BETA:
            tl.store(deficits + c, _whole(sums, c, channels, 2, PARTS) / sharpness(log_beta), exists)
    scale = gain * _per_channel(weight, c, channels, WEIGHT, 1.0)
    slope = product / positions * gain
    average = total / positions
    first = part * per_part
    last = tl.minimum(first + per_part, positions)
    for start in range(first, last, P):
        p = start + tl.arange(0, P)
        at, inside = _tile(p, c, last, channels, length, stride_n, stride_c, stride_l)
        t = tl.load(g + at, inside, 0.0).to(tl.float32)
        if ACTIVATE:
            centered = tl.load(y + at, inside, 0.0).to(tl.float32) - shift
            t = factor * t * (0.5 + 0.5 * tau_(centered, sharpness(log_beta)))
        if OTHER:
            tl.store(in_other + at, t.to(in_other.dtype.element_ty), inside)
        away = tl.load(x + at, inside, 0.0).to(tl.float32) - center[None, :]
        found = (t - average[None, :] - away * slope[None, :]) * scale[None, :]
        tl.store(in_x + at, found.to(in_x.dtype.element_ty), inside)


@triton.jit
def second_sums_kernel(
    v,
    v_other,
    g,
    y,
    x,
    log_beta,
    mean,
    t_sum,
    sums,
    factor,
    shift,
    positions,
    channels,
    length,
    stride_n,
    stride_c,
    stride_l,
    per_part,
    OTHER: tl.constexpr,
    ACTIVATE: tl.constexpr,
    PARTS: tl.constexpr,
    P: tl.constexpr,
    C: tl.constexpr,
):
    """sums: Σ v, Σ v (x - μ), Σ v (t - M(t)); with e = factor g β (1 - σ)(y - shift): Σ v e, Σ (x - μ) e, Σ e, Σ v′ e.

    Of the last four the next kernel makes the gradient in log β, Σ h e, where h is the gradient in t and v′ that of
    in_other.
    """
    c = tl.program_id(0) * C + tl.arange(0, C)
    part = tl.program_id(1)
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
    first = part * per_part
    last = tl.minimum(first + per_part, positions)
    for start in range(first, last, P):
        p = start + tl.arange(0, P)
        at, inside = _tile(p, c, last, channels, length, stride_n, stride_c, stride_l)
        outer = tl.load(v + at, inside, 0.0).to(tl.float32)
        t = tl.load(g + at, inside, 0.0).to(tl.float32)
        away = tl.load(x + at, inside, 0.0).to(tl.float32) - center[None, :]
        if ACTIVATE:
            beta = sharpness(log_beta)
            centered = tl.load(y + at, inside, 0.0).to(tl.float32) - shift
            tau = tau_(centered, beta)
            e = tl.where(inside, factor * t * beta * (0.5 - 0.5 * tau) * centered, 0.0)
            t = factor * t * (0.5 + 0.5 * tau)
            outer_e += tl.sum(outer * e, axis=0)
            away_e += tl.sum(away * e, axis=0)
            plain_e += tl.sum(e, axis=0)
            if OTHER:
                other_e += tl.sum(tl.load(v_other + at, inside, 0.0).to(tl.float32) * e, axis=0)
        total += tl.sum(outer, axis=0)  # 0 where nothing was loaded
        with_x += tl.sum(outer * away, axis=0)
        with_t += tl.sum(outer * (t - average[None, :]), axis=0)
    tl.store(sums + part * channels + c, total, exists)
    tl.store(sums + (PARTS + part) * channels + c, with_x, exists)
    tl.store(sums + (2 * PARTS + part) * channels + c, with_t, exists)
    if ACTIVATE:
        tl.store(sums + (3 * PARTS + part) * channels + c, outer_e, exists)
        tl.store(sums + (4 * PARTS + part) * channels + c, away_e, exists)
        tl.store(sums + (5 * PARTS + part) * channels + c, plain_e, exists)
        tl.store(sums + (6 * PARTS + part) * channels + c, other_e, exists)


@triton.jit
def second_kernel(
    v,
    v_other,
    g,
    y,
    x,
    weight,
    log_beta,
    mean,
    invstd,
    t_hat,
    t_sum,
    in_g,
    in_y,
    in_x,
    in_weight,
    in_beta,
    sums,
    factor,
    shift,
    positions,
    channels,
    length,
    stride_n,
    stride_c,
    stride_l,
    per_part,
    WEIGHT: tl.constexpr,
    OTHER: tl.constexpr,
    ACTIVATE: tl.constexpr,
    PARTS: tl.constexpr,
    P: tl.constexpr,
    C: tl.constexpr,
):
    """Gradients of ⟨v, in_x⟩ + ⟨v′, in_other⟩ in g, y, x; the first part writes those in w and, by channel, log β."""
    c = tl.program_id(0) * C + tl.arange(0, C)
    part = tl.program_id(1)
    exists = c < channels
    center = tl.load(mean + c, exists, 0.0)
    r = tl.load(invstd + c, exists, 0.0)
    average = tl.load(t_sum + c, exists, 0.0) / positions
    a_t = tl.load(t_hat + c, exists, 0.0) / positions
    m_v = _whole(sums, c, channels, 0, PARTS) / positions
    a_v = _whole(sums, c, channels, 1, PARTS) * r / positions
    s = _whole(sums, c, channels, 2, PARTS) / positions - a_v * a_t
    scale = r * _per_channel(weight, c, channels, WEIGHT, 1.0)
    if part == 0:
        tl.store(in_weight + c, r * s * positions, exists)
        if ACTIVATE:
            bent = scale * _whole(sums, c, channels, 3, PARTS) - scale * a_v * r * _whole(sums, c, channels, 4, PARTS)
            bent += _whole(sums, c, channels, 6, PARTS) - scale * m_v * _whole(sums, c, channels, 5, PARTS)
            tl.store(in_beta + c, bent, exists)
    first = part * per_part
    last = tl.minimum(first + per_part, positions)
    for start in range(first, last, P):
        p = start + tl.arange(0, P)
        at, inside = _tile(p, c, last, channels, length, stride_n, stride_c, stride_l)
        outer = tl.load(v + at, inside, 0.0).to(tl.float32)
        grad = tl.load(g + at, inside, 0.0).to(tl.float32)
        away = tl.load(x + at, inside, 0.0).to(tl.float32) - center[None, :]
        h = scale[None, :] * (outer - (a_v * r)[None, :] * away - m_v[None, :])
        t = grad
        slope = 1.0
        if ACTIVATE:
            beta = sharpness(log_beta)
            tau = tau_(tl.load(y + at, inside, 0.0).to(tl.float32) - shift, beta)
            if OTHER:
                h += tl.load(v_other + at, inside, 0.0).to(tl.float32)
            bend = h * grad * factor * beta * (0.5 - 0.5 * tau)
            tl.store(in_y + at, bend.to(in_y.dtype.element_ty), inside)
            slope = factor * (0.5 + 0.5 * tau)
            t = grad * slope
        tl.store(in_g + at, (slope * h).to(in_g.dtype.element_ty), inside)
        moved = a_t[None, :] * (outer - m_v[None, :]) + a_v[None, :] * (t - average[None, :])
        moved += ((s - 2 * a_v * a_t) * r)[None, :] * away
        tl.store(in_x + at, (-(scale * r)[None, :] * moved).to(in_x.dtype.element_ty), inside)

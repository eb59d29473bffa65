"""The softplus of one value, its slope and its derivative in log β, as GPU device functions in float32.

These are the formulas of `cpu/_softplus.h`, for the same reasons: from the output y alone τ = tanh(βx/2) = 1 - e^{-βy},
the slope σ = (1 + τ) / 2, and no cancellation anywhere. Polynomials instead of a device's own expm1 and log, so that
NVIDIA, AMD and the interpreter agree.
"""

import triton
import triton.language as tl


@triton.jit
def expm1_(a):
    """Return eᵃ - 1 for a ≤ 88: a = n log 2 + r with |r| ≤ log(2)/2, then (2ⁿ - 1) + 2ⁿ (eʳ - 1); NaN stays NaN."""
    a = tl.where(a < -87.0, -87.0, a)
    n = tl.floor(a * 1.44269504 + 0.5)
    r = a - n * 0.693145752 - n * 1.42860677e-6
    p = r * (1.0 / 5040) + (1.0 / 720)
    p = p * r + (1.0 / 120)
    p = p * r + (1.0 / 24)
    p = p * r + (1.0 / 6)
    p = p * r + 0.5
    p = p * r * r + r
    whole = tl.where(n == n, n, 0.0).to(tl.int32)  # a NaN has no integer; p keeps it
    scale = ((whole + 127) << 23).to(tl.float32, bitcast=True)
    return scale * p + (scale - 1.0)


@triton.jit
def log1p_half(z):
    """Return log(1 + z) for -1/2 ≤ z ≤ 0: z times a minimax polynomial of relative error 3e-8."""
    p = z * 1.441107866 + 1.695811832
    p = p * z + 1.257669639
    p = p * z + 0.2035388678
    p = p * z + 0.2696127276
    p = p * z - 0.242805083
    p = p * z + 0.3337006144
    p = p * z - 0.4999928526
    return p * z * z + z


@triton.jit
def log_(u):
    """Return log u for normal u > 0: u = 2ᵏ m with m in [1/√2, √2)."""
    bits = u.to(tl.int32, bitcast=True) - 0x3F3504F3  # the bits of 1/√2
    k = (bits >> 23).to(tl.float32)
    f = ((bits & 0x7FFFFF) + 0x3F3504F3).to(tl.float32, bitcast=True) - 1.0
    p = f * 0.08722355733 - 0.1436684272
    p = p * f + 0.1495226653
    p = p * f - 0.1656239317
    p = p * f + 0.1995683358
    p = p * f - 0.2500207406
    p = p * f + 0.3333418562
    p = p * f - 0.4999998796
    return k * 0.693147181 + (p * f * f + f)


@triton.jit
def sharpness(log_beta):
    """Return β from the address of its logarithm; above e⁸⁸, near float32's largest, all count as that."""
    log = tl.load(log_beta).to(tl.float32)
    return tl.exp(tl.where(log > 88.0, 88.0, log))


@triton.jit
def softplus_(x, beta, shift):
    """Return s₀(x; β) + shift."""
    magnitude = tl.where(x > 0.0, -beta * x, beta * x)
    positive = tl.where(x > 0.0, x + shift, shift)
    return positive + log1p_half(0.5 * expm1_(magnitude)) / beta


@triton.jit
def tau_(y, beta):
    """Return τ from the centered output y; what rounding leaves of a slope of 0 far below the kink becomes 0."""
    tau = -expm1_(-beta * y)
    return tl.where(tau < -0.9999998, -1.0, tau)


@triton.jit
def entropy_deficit(tau, scaled_y):
    """Return log 2 - H(σ): the series in τ near 0, σ log(2σ) - (1 - σ) βy elsewhere."""
    q = tau * tau
    series = q * (1.0 / 132) + (1.0 / 90)
    series = series * q + (1.0 / 56)
    series = series * q + (1.0 / 30)
    series = series * q + (1.0 / 12)
    series = (series * q + 0.5) * q
    twice = 1.0 + tau
    exact = 0.5 * (twice * log_(tl.where(twice < 1e-30, 1e-30, twice)) - (1.0 - tau) * scaled_y)
    return tl.where(q < 0.06, series, exact)

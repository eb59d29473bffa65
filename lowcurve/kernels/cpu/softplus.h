/* The softplus of one value in float32, its slope, and its derivative in log beta. The formulas are derived in reference.py. */
#include <stdint.h>
#include <string.h>

INLINE float from_bits(int32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

INLINE int32_t to_bits(float value) {
    int32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* e^a - 1 for a <= 1: a = n log 2 + r with |r| <= log(2)/2, then (2^n - 1) + 2^n (e^r - 1). NaN stays NaN. */
INLINE float expm1_(float a) {
    a = a < -87.0f ? -87.0f : a;
    float shifted = a * 1.44269504f + 12582912.0f; /* 1.5 * 2^23: the integer part lands in the low bits */
    float n = shifted - 12582912.0f;
    float r = a - n * 0.693145752f - n * 1.42860677e-6f;
    float p = 1.0f / 5040;
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r * r + r;
    float scale = from_bits((int32_t)((uint32_t)(to_bits(shifted) - to_bits(12582912.0f) + 127) << 23));
    return scale * p + (scale - 1.0f);
}

/* log(1 + z) for -1/2 <= z <= 0: z times a minimax polynomial of relative error 3e-8; a division would cost more. */
INLINE float log1p_half(float z) {
    float p = 1.441107866f;
    p = p * z + 1.695811832f;
    p = p * z + 1.257669639f;
    p = p * z + 0.2035388678f;
    p = p * z + 0.2696127276f;
    p = p * z - 0.242805083f;
    p = p * z + 0.3337006144f;
    p = p * z - 0.4999928526f;
    return p * z * z + z;
}

/* log u for normal u > 0: u = 2^k m with m in [1/sqrt 2, sqrt 2). */
INLINE float log_(float u) {
    int32_t bits = to_bits(u) - 0x3f3504f3; /* the bits of 1/sqrt 2 */
    float k = (float)(bits >> 23);
    float m = from_bits((bits & 0x7fffff) + 0x3f3504f3);
    float f = m - 1.0f;
    float p = 0.08722355733f; /* log(1 + f) = f + f^2 p: minimax, relative error 3e-8 */
    p = p * f - 0.1436684272f;
    p = p * f + 0.1495226653f;
    p = p * f - 0.1656239317f;
    p = p * f + 0.1995683358f;
    p = p * f - 0.2500207406f;
    p = p * f + 0.3333418562f;
    p = p * f - 0.4999998796f;
    return k * 0.693147181f + (p * f * f + f);
}

/* tanh(beta x / 2) from y; what rounding leaves of a slope of 0 far below the kink becomes 0. */
INLINE float tau_(float y, float beta) {
    float tau = -expm1_(-beta * y);
    return tau < -0.9999998f ? -1.0f : tau;
}

/* log 2 - H(sigma): the series in tau near 0, sigma log(2 sigma) - (1 - sigma) beta y elsewhere. */
INLINE float entropy_deficit(float tau, float scaled_y) {
    float q = tau * tau;
    float series = 1.0f / 132;
    series = series * q + 1.0f / 90;
    series = series * q + 1.0f / 56;
    series = series * q + 1.0f / 30;
    series = series * q + 1.0f / 12;
    series = (series * q + 0.5f) * q;
    float twice = 1.0f + tau;
    float exact = 0.5f * (twice * log_(twice < 1e-30f ? 1e-30f : twice) - (1.0f - tau) * scaled_y);
    return q < 0.06f ? series : exact;
}

/* s0(x; beta) + shift */
INLINE float softplus_(float x, float beta, float inverse, float shift) {
    float a = x > 0.0f ? -beta * x : beta * x;
    float positive = x > 0.0f ? x + shift : shift;
    return positive + log1p_half(0.5f * expm1_(a)) * inverse;
}

/* Softplus y = s0(x; beta) + shift in float32 (shift 0: centered; log(2) / beta: the usual one),
 * one pass over memory each for value, gradient and second-order gradient.
 *
 * Optional: where no compiler was at hand when the package was installed, softplus.py does the same in PyTorch
 * operations, about four times slower. The formulas are derived there. The loops are plain C that compilers
 * vectorize; libgomp is the one that PyTorch has loaded, so both share a thread pool.
 */
#include "_loops.h"

#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

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

/* One block each; the loops over blocks below are parallel. */
VECTORIZED static void value_block(long n, const float *x, float beta, float shift, float *y) {
    float inverse = 1.0f / beta;
    for (long i = 0; i < n; i++) {
        float a = x[i] > 0.0f ? -beta * x[i] : beta * x[i];
        float positive = x[i] > 0.0f ? x[i] + shift : shift;
        y[i] = positive + log1p_half(0.5f * expm1_(a)) * inverse;
    }
}

VECTORIZED static void gradient_block(long n, const float *g, const float *y, float beta, float shift, float *in_x) {
    for (long i = 0; i < n; i++) in_x[i] = g[i] * (0.5f + 0.5f * tau_(y[i] - shift, beta));
}

VECTORIZED static float gradients_block(long n, const float *g, const float *y, float beta, float shift, float *in_x) {
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (long i = 0; i < n; i++) {
        float tau = tau_(y[i] - shift, beta);
        in_x[i] = g[i] * (0.5f + 0.5f * tau);
        sum += g[i] * entropy_deficit(tau, beta * (y[i] - shift));
    }
    return sum;
}

VECTORIZED static float second_block(long n, const float *h, const float *g, const float *y, float beta, float shift, float *in_g,
                                     float *in_y) {
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (long i = 0; i < n; i++) {
        float tau = tau_(y[i] - shift, beta);
        in_g[i] = h[i] * (0.5f + 0.5f * tau);
        in_y[i] = h[i] * g[i] * beta * (0.5f - 0.5f * tau);
        sum += in_y[i] * y[i];
    }
    return sum;
}

/* y = s0(x; beta) + shift */
void lowcurve_value(long n, int threads, const float *x, float beta, float shift, float *y) {
#pragma omp parallel for num_threads(threads) schedule(static) if (n > BLOCK)
    for (long i = 0; i < n; i += BLOCK) value_block(SIZE(i), x + i, beta, shift, y + i);
}

/* in_x = g sigma */
void lowcurve_gradient(long n, int threads, const float *g, const float *y, float beta, float shift, float *in_x) {
#pragma omp parallel for num_threads(threads) schedule(static) if (n > BLOCK)
    for (long i = 0; i < n; i += BLOCK) gradient_block(SIZE(i), g + i, y + i, beta, shift, in_x + i);
}

/* in_x = g sigma; returns sum g (log 2 - H(sigma)). The partial sums are added in an order that no thread changes. */
double lowcurve_gradients(long n, int threads, const float *g, const float *y, float beta, float shift, float *in_x, float *partial) {
#pragma omp parallel for num_threads(threads) schedule(static) if (n > BLOCK)
    for (long i = 0; i < n; i += BLOCK) partial[i / BLOCK] = gradients_block(SIZE(i), g + i, y + i, beta, shift, in_x + i);
    double sum = 0.0;
    for (long i = 0; i < n; i += BLOCK) sum += partial[i / BLOCK];
    return sum;
}

/* For h the gradient of in_x: in_g = h sigma, in_y = h g beta (1 - sigma); returns sum in_y y. */
double lowcurve_second(long n, int threads, const float *h, const float *g, const float *y, float beta, float shift, float *in_g,
                       float *in_y, float *partial) {
#pragma omp parallel for num_threads(threads) schedule(static) if (n > BLOCK)
    for (long i = 0; i < n; i += BLOCK)
        partial[i / BLOCK] = second_block(SIZE(i), h + i, g + i, y + i, beta, shift, in_g + i, in_y + i);
    double sum = 0.0;
    for (long i = 0; i < n; i += BLOCK) sum += partial[i / BLOCK];
    return sum;
}

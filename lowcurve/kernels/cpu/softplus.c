/* Softplus y = s0(x; beta) + shift in float32 (shift 0: centered; log(2) / beta: the usual one),
 * one pass over memory each for value, gradient and second-order gradient.
 *
 * Optional: where no compiler was at hand when the package was installed, reference.py does the same in PyTorch
 * operations, about four times slower. The formulas are derived there. The loops are plain C that compilers
 * vectorize; libgomp is the one that PyTorch has loaded, so both share a thread pool.
 */
#include "loops.h"
#include "softplus.h"

const long lowcurve_block = BLOCK;

/* One block each; the loops over blocks below are parallel. */
VECTORIZED static void value_block(long n, const float *x, float beta, float shift, float *y) {
    float inverse = 1.0f / beta;
    for (long i = 0; i < n; i++) y[i] = softplus_(x[i], beta, inverse, shift);
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
        float centered_y = y[i] - shift, tau = tau_(centered_y, beta);
        in_g[i] = h[i] * (0.5f + 0.5f * tau);
        in_y[i] = h[i] * g[i] * beta * (0.5f - 0.5f * tau);
        sum += in_y[i] * centered_y;
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

/* For h the gradient of in_x: in_g = h sigma, in_y = h g beta (1 - sigma); returns sum in_y (y - shift). */
double lowcurve_second(long n, int threads, const float *h, const float *g, const float *y, float beta, float shift, float *in_g,
                       float *in_y, float *partial) {
#pragma omp parallel for num_threads(threads) schedule(static) if (n > BLOCK)
    for (long i = 0; i < n; i += BLOCK)
        partial[i / BLOCK] = second_block(SIZE(i), h + i, g + i, y + i, beta, shift, in_g + i, in_y + i);
    double sum = 0.0;
    for (long i = 0; i < n; i += BLOCK) sum += partial[i / BLOCK];
    return sum;
}

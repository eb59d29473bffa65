/* W / sigma with sigma = <W, S> in float32, and its gradient: two passes over memory each. Optional like softplus.c. */
#include "loops.h"

#include <float.h>

VECTORIZED static float product_block(long n, const float *a, const float *b) {
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (long i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

VECTORIZED static void scale_block(long n, const float *x, float scale, float *y) {
    for (long i = 0; i < n; i++) y[i] = scale * x[i];
}

VECTORIZED static void combine_block(long n, const float *g, const float *s, float slope, float scale, float *y) {
    for (long i = 0; i < n; i++) y[i] = scale * (g[i] - slope * s[i]);
}

/* The blocks' sums are added in an order that no thread changes. */
static double product(long n, int threads, const float *a, const float *b, float *partial) {
#pragma omp parallel for num_threads(threads) schedule(static) if (n > BLOCK)
    for (long i = 0; i < n; i += BLOCK) partial[i / BLOCK] = product_block(SIZE(i), a + i, b + i);
    double sum = 0.0;
    for (long i = 0; i < n; i += BLOCK) sum += partial[i / BLOCK];
    return sum;
}

/* For all weights w of a network, one after the other: y = w / sigma, with sigma = <w, s>, or 1 where that is below the smallest
 * normal number. `partial` is room for the blocks of the largest. */
void lowcurve_units(long weights, int threads, const long *sizes, Given w, Given s, Found y, float *sigma, float *partial) {
    for (long i = 0; i < weights; i++) {
        double found = product(sizes[i], threads, w[i], s[i], partial);
        sigma[i] = found < FLT_MIN ? 1.0f : (float)found;
        float scale = 1.0f / sigma[i];
#pragma omp parallel for num_threads(threads) schedule(static) if (sizes[i] > BLOCK)
        for (long k = 0; k < sizes[i]; k += BLOCK) scale_block(lesser(BLOCK, sizes[i] - k), w[i] + k, scale, y[i] + k);
    }
}

/* in_w = (g - <g, y> s) / sigma for y the outputs above */
void lowcurve_units_gradient(long weights, int threads, const long *sizes, Given g, Given y, Given s, const float *sigma, Found in_w,
                             float *partial) {
    for (long i = 0; i < weights; i++) {
        float slope = (float)product(sizes[i], threads, g[i], y[i], partial), scale = 1.0f / sigma[i];
#pragma omp parallel for num_threads(threads) schedule(static) if (sizes[i] > BLOCK)
        for (long k = 0; k < sizes[i]; k += BLOCK)
            combine_block(lesser(BLOCK, sizes[i] - k), g[i] + k, s[i] + k, slope, scale, in_w[i] + k);
    }
}

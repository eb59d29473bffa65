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

/* y = w / sigma; returns sigma = <w, s>, or 1 where that is below the smallest normal number */
double lowcurve_unit(long n, int threads, const float *w, const float *s, float *y, float *partial) {
    double found = product(n, threads, w, s, partial);
    float sigma = found < FLT_MIN ? 1.0f : (float)found;
    float scale = 1.0f / sigma;
#pragma omp parallel for num_threads(threads) schedule(static) if (n > BLOCK)
    for (long i = 0; i < n; i += BLOCK) scale_block(SIZE(i), w + i, scale, y + i);
    return sigma;
}

/* in_w = (g - <g, y> s) / sigma for y the output above */
void lowcurve_unit_gradient(long n, int threads, const float *g, const float *y, const float *s, float sigma, float *in_w,
                            float *partial) {
    float slope = (float)product(n, threads, g, y, partial), scale = 1.0f / sigma;
#pragma omp parallel for num_threads(threads) schedule(static) if (n > BLOCK)
    for (long i = 0; i < n; i += BLOCK) combine_block(SIZE(i), g + i, s + i, slope, scale, in_w + i);
}

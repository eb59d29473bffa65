/* Batch norm of (N, C, L) in training mode, float32: value with running statistics, gradient, second-order gradient.
 *
 * One channel at a time: its values still lie in the cache when the second pass (variance) and the third (result) come
 * for them, where PyTorch walks through the whole tensor for each. Optional like _softplus.c.
 */
#include "_loops.h"

#include <math.h>

static inline long lesser(long a, long b) { return a < b ? a : b; }

/* Walk through a channel in stretches of at most BLOCK values of one sample. Sums run in float32 within a stretch and in
 * float64 over stretches. `step` is from one sample to the next. */
#define FOR_STRETCHES(start, stop)                                                                                           \
    for (long n = 0; n < samples; n++)                                                                                       \
        for (long start = n * step, stop; start < n * step + length; start = stop)                                           \
            if ((stop = lesser(start + BLOCK, n * step + length)))

VECTORIZED static double sum_of(long samples, long step, long length, const float *x) {
    double total = 0.0;
    FOR_STRETCHES(start, stop) {
        float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
        for (long i = start; i < stop; i++) sum += x[i];
        total += sum;
    }
    return total;
}

VECTORIZED static double squares_of(long samples, long step, long length, const float *x, float mean) {
    double total = 0.0;
    FOR_STRETCHES(start, stop) {
        float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
        for (long i = start; i < stop; i++) sum += (x[i] - mean) * (x[i] - mean);
        total += sum;
    }
    return total;
}

/* sums = (sum g, sum g (x - mean)) */
VECTORIZED static void sums_of(long samples, long step, long length, const float *g, const float *x, float mean, double sums[2]) {
    sums[0] = sums[1] = 0.0;
    FOR_STRETCHES(start, stop) {
        float sum = 0.0f, product = 0.0f;
#pragma omp simd reduction(+ : sum, product)
        for (long i = start; i < stop; i++) {
            sum += g[i];
            product += g[i] * (x[i] - mean);
        }
        sums[0] += sum;
        sums[1] += product;
    }
}

/* sums = (sum v, sum v (x - mean), sum v (g - m_g)) */
VECTORIZED static void outer_sums_of(long samples, long step, long length, const float *v, const float *g, const float *x,
                                     float mean, float m_g, double sums[3]) {
    sums[0] = sums[1] = sums[2] = 0.0;
    FOR_STRETCHES(start, stop) {
        float sum = 0.0f, in_x = 0.0f, in_g = 0.0f;
#pragma omp simd reduction(+ : sum, in_x, in_g)
        for (long i = start; i < stop; i++) {
            sum += v[i];
            in_x += v[i] * (x[i] - mean);
            in_g += v[i] * (g[i] - m_g);
        }
        sums[0] += sum;
        sums[1] += in_x;
        sums[2] += in_g;
    }
}

/* The loops below follow sums over the same values and run backwards: what was read last is still in the cache. */

/* y = scale (x - mean) + shift */
VECTORIZED static void normalize(long samples, long step, long length, const float *x, float mean, float scale, float shift,
                                 float *y) {
    for (long n = samples - 1; n >= 0; n--)
        for (long i = n * step; i < n * step + length; i++) y[i] = (x[i] - mean) * scale + shift;
}

/* in_x = scale (g - center - slope (x - mean)) */
VECTORIZED static void project(long samples, long step, long length, const float *g, const float *x, float mean, float scale,
                               float center, float slope, float *in_x) {
    for (long n = samples - 1; n >= 0; n--)
        for (long i = n * step; i < n * step + length; i++) in_x[i] = (g[i] - center - (x[i] - mean) * slope) * scale;
}

/* in_g = scale p and in_x = outer_scale (a_g p + a_v (g - m_g) + slope x^), where p = v - m_v - a_v x^ is the projection of v
 * and x^ = (x - mean) invstd. */
VECTORIZED static void project_twice(long samples, long step, long length, const float *v, const float *g, const float *x,
                                     float mean, float invstd, float scale, float outer_scale, float a_g, float m_g, float a_v,
                                     float m_v, float slope, float *in_g, float *in_x) {
    for (long n = samples - 1; n >= 0; n--)
        for (long i = n * step; i < n * step + length; i++) {
            float hat = (x[i] - mean) * invstd;
            float p = v[i] - m_v - a_v * hat;
            in_g[i] = scale * p;
            in_x[i] = outer_scale * (a_g * p + a_v * (g[i] - m_g) + slope * hat);
        }
}

/* y = weight (x - mean) invstd + bias per channel; running statistics move by momentum. weight, bias and the running
 * statistics may be null. */
void lowcurve_norm(long samples, int threads, long channels, long length, const float *x, const float *weight,
                   const float *bias, float *running_mean, float *running_var, float momentum, float eps, float *y, float *mean,
                   float *invstd) {
    long step = channels * length;
    double count = (double)samples * (double)length;
#pragma omp parallel for num_threads(threads) schedule(static) if (samples * step > BLOCK)
    for (long c = 0; c < channels; c++) {
        const float *own = x + c * length;
        mean[c] = (float)(sum_of(samples, step, length, own) / count);
        double squares = squares_of(samples, step, length, own, mean[c]);
        invstd[c] = (float)(1.0 / sqrt(squares / count + eps));
        float scale = weight ? weight[c] * invstd[c] : invstd[c];
        normalize(samples, step, length, own, mean[c], scale, bias ? bias[c] : 0.0f, y + c * length);
        if (running_mean) running_mean[c] = (1 - momentum) * running_mean[c] + momentum * mean[c];
        if (running_var) {
            float variance = (float)(squares / (count > 1 ? count - 1 : 1));
            running_var[c] = (1 - momentum) * running_var[c] + momentum * variance;
        }
    }
}

/* For g the gradient of y: in_x, in_weight = sum g x^ with x^ = (x - mean) invstd, and in_bias = sum g. */
void lowcurve_norm_gradient(long samples, int threads, long channels, long length, const float *g, const float *x,
                            const float *weight, const float *mean, const float *invstd, float *in_x, float *in_weight,
                            float *in_bias) {
    long step = channels * length;
    double count = (double)samples * (double)length;
#pragma omp parallel for num_threads(threads) schedule(static) if (samples * step > BLOCK)
    for (long c = 0; c < channels; c++) {
        const float *own = x + c * length, *own_g = g + c * length;
        double sums[2];
        sums_of(samples, step, length, own_g, own, mean[c], sums);
        double sum = sums[0], product = sums[1] * invstd[c];
        in_bias[c] = (float)sum;
        in_weight[c] = (float)product;
        float scale = weight ? weight[c] * invstd[c] : invstd[c];
        project(samples, step, length, own_g, own, mean[c], scale, (float)(sum / count), (float)(product / count) * invstd[c],
                in_x + c * length);
    }
}

/* For v the gradient of the in_x above: the gradients in g, x and weight, derived in second_order.py. g_hat and g_sum are
 * the in_weight and in_bias above. */
void lowcurve_norm_second(long samples, int threads, long channels, long length, const float *v, const float *g, const float *x,
                          const float *weight, const float *mean, const float *invstd, const float *g_hat, const float *g_sum,
                          float *in_g, float *in_x, float *in_weight) {
    long step = channels * length;
    double count = (double)samples * (double)length;
#pragma omp parallel for num_threads(threads) schedule(static) if (samples * step > BLOCK)
    for (long c = 0; c < channels; c++) {
        long at = c * length;
        double a_g = g_hat[c] / count, m_g = g_sum[c] / count;
        double sums[3];
        outer_sums_of(samples, step, length, v + at, g + at, x + at, mean[c], (float)m_g, sums);
        double m_v = sums[0] / count, a_v = sums[1] * invstd[c] / count, s = sums[2] / count - a_v * a_g;
        float scale = weight ? weight[c] * invstd[c] : invstd[c];
        in_weight[c] = (float)(invstd[c] * s * count);
        project_twice(samples, step, length, v + at, g + at, x + at, mean[c], invstd[c], scale, -scale * invstd[c], (float)a_g,
                      (float)m_g, (float)a_v, (float)m_v, (float)(s - a_v * a_g), in_g + at, in_x + at);
    }
}

/* Batch norm of (N, C, L) in training mode, float32: value with running statistics, gradient, second-order gradient.
 *
 * One channel at a time: its values still lie in the cache when the second pass (variance) and the third (result) come
 * for them, where PyTorch walks through the whole tensor for each. Optional like _softplus.c.
 */
#include "_loops.h"

#include <math.h>

/* Sums run in float32 over at most BLOCK values of one sample and channel, and in float64 over such stretches. `step` is
 * from one sample to the next. */
#define SUM_OVER_CHANNEL(term)                                                                                               \
    double total = 0.0;                                                                                                      \
    for (long n = 0; n < samples; n++)                                                                                       \
        for (long start = n * step; start < n * step + length; start += BLOCK) {                                             \
            long rest = n * step + length - start, size = rest < BLOCK ? rest : BLOCK;                                       \
            float sum = 0.0f;                                                                                                \
            _Pragma("omp simd reduction(+ : sum)") for (long i = start; i < start + size; i++) sum += (term);                \
            total += sum;                                                                                                    \
        }                                                                                                                    \
    return total;

VECTORIZED static double sum_of(long samples, long step, long length, const float *x) { SUM_OVER_CHANNEL(x[i]) }

VECTORIZED static double squares_of(long samples, long step, long length, const float *x, float mean) {
    SUM_OVER_CHANNEL((x[i] - mean) * (x[i] - mean))
}

VECTORIZED static double product_of(long samples, long step, long length, const float *g, const float *x, float mean) {
    SUM_OVER_CHANNEL(g[i] * (x[i] - mean))
}

/* y = scale (x - mean) + shift */
VECTORIZED static void normalize(long samples, long step, long length, const float *x, float mean, float scale, float shift,
                                 float *y) {
    for (long n = 0; n < samples; n++)
        for (long i = n * step; i < n * step + length; i++) y[i] = (x[i] - mean) * scale + shift;
}

/* in_x = scale (g - center - slope (x - mean)) */
VECTORIZED static void project(long samples, long step, long length, const float *g, const float *x, float mean, float scale,
                               float center, float slope, float *in_x) {
    for (long n = 0; n < samples; n++)
        for (long i = n * step; i < n * step + length; i++) in_x[i] = (g[i] - center - (x[i] - mean) * slope) * scale;
}

/* in_g = scale p and in_x = outer_scale (a_g p + a_v (g - m_g) + slope x^), where p = v - m_v - a_v x^ is the projection of v
 * and x^ = (x - mean) invstd. */
VECTORIZED static void project_twice(long samples, long step, long length, const float *v, const float *g, const float *x,
                                     float mean, float invstd, float scale, float outer_scale, float a_g, float m_g, float a_v,
                                     float m_v, float slope, float *in_g, float *in_x) {
    for (long n = 0; n < samples; n++)
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
        double sum = sum_of(samples, step, length, own_g);
        double product = product_of(samples, step, length, own_g, own, mean[c]) * invstd[c];
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
        double m_v = sum_of(samples, step, length, v + at) / count;
        double a_v = product_of(samples, step, length, v + at, x + at, mean[c]) * invstd[c] / count;
        double s = product_of(samples, step, length, v + at, g + at, (float)m_g) / count - a_v * a_g;
        float scale = weight ? weight[c] * invstd[c] : invstd[c];
        in_weight[c] = (float)(invstd[c] * s * count);
        project_twice(samples, step, length, v + at, g + at, x + at, mean[c], invstd[c], scale, -scale * invstd[c], (float)a_g,
                      (float)m_g, (float)a_v, (float)m_v, (float)(s - a_v * a_g), in_g + at, in_x + at);
    }
}

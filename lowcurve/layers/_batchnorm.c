/* Batch norm of (N, C, L) in training mode, float32: value with running statistics, gradient, second-order gradient.
 * Optional like _softplus.c.
 */
#include "_channels.h"

VECTORIZED static void normalize(Group group, const float *x, const Affine *by, float *y) {
    FOR_ROWS_BACKWARDS(at, size)
#pragma omp simd
        for (long i = 0; i < size; i++) y[at + i] = (x[at + i] - by->mean[i]) * by->scale[i] + by->bias[i];
}

/* Add sum g and sum g (x - mean); mean is spread. */
VECTORIZED static void sums_of(Group group, const float *g, const float *x, const float *mean, double *sum, double *product) {
    FOR_PIECES(first, from, size) {
        float sums[COLUMNS] = {0}, products[COLUMNS] = {0};
        FOR_SAMPLES(first, from, at)
#pragma omp simd
            for (long i = 0; i < size; i++) {
                sums[i] += g[at + i];
                products[i] += g[at + i] * (x[at + i] - mean[i]);
            }
        add_columns(group, size, sums, sum);
        add_columns(group, size, products, product);
    }
}

/* Add sum v, sum v (x - mean) and sum v (g - g_mean); the means are spread. */
VECTORIZED static void outer_sums_of(Group group, const float *v, const float *g, const float *x, const float *mean,
                                     const float *g_mean, double *sum, double *with_x, double *with_g) {
    FOR_PIECES(first, from, size) {
        float sums[COLUMNS] = {0}, in_x[COLUMNS] = {0}, in_g[COLUMNS] = {0};
        FOR_SAMPLES(first, from, at)
#pragma omp simd
            for (long i = 0; i < size; i++) {
                sums[i] += v[at + i];
                in_x[i] += v[at + i] * (x[at + i] - mean[i]);
                in_g[i] += v[at + i] * (g[at + i] - g_mean[i]);
            }
        add_columns(group, size, sums, sum);
        add_columns(group, size, in_x, with_x);
        add_columns(group, size, in_g, with_g);
    }
}

VECTORIZED static void project_twice(Group group, const float *v, const float *g, const float *x, const SecondOrder *by,
                                     float *in_g, float *in_x) {
    FOR_ROWS_BACKWARDS(at, size)
#pragma omp simd
        for (long i = 0; i < size; i++) {
            float centered = x[at + i] - by->mean[i], outer = v[at + i];
            in_g[at + i] = by->scale[i] * outer - by->slope[i] * centered - by->center[i];
            in_x[at + i] = by->in_v[i] * outer + by->in_g[i] * (g[at + i] - by->g_mean[i]) + by->in_x[i] * centered - by->constant[i];
        }
}

/* y = weight (x - mean) invstd + bias per channel; running statistics move by momentum. weight, bias and the running
 * statistics may be null. */
void lowcurve_norm(long samples, int threads, long channels, long length, const float *x, const float *weight,
                   const float *bias, float *running_mean, float *running_var, float momentum, float eps, float *y, float *mean,
                   float *invstd) {
    FOR_GROUPS(c) {
        Group group = GROUP_AT(c);
        Affine by;
        find_affine(group, x + c * length, after(weight, c), after(bias, c), running_mean ? running_mean + c : 0,
                    running_var ? running_var + c : 0, momentum, eps, mean + c, invstd + c, &by);
        normalize(group, x + c * length, &by, y + c * length);
    }
}

/* For g the gradient of y: in_x, in_weight = sum g x^ with x^ = (x - mean) invstd, and in_bias = sum g. */
void lowcurve_norm_gradient(long samples, int threads, long channels, long length, const float *g, const float *x,
                            const float *weight, const float *mean, const float *invstd, float *in_x, float *in_weight,
                            float *in_bias) {
    FOR_GROUPS(c) {
        Group group = GROUP_AT(c);
        long at = c * length;
        Projection by;
        double sum[COLUMNS] = {0}, product[COLUMNS] = {0};
        spread(group, mean + c, by.mean);
        sums_of(group, g + at, x + at, by.mean, sum, product);
        find_projection(group, sum, product, after(weight, c), invstd + c, &by, in_weight + c, in_bias + c);
        project(group, g + at, x + at, &by, in_x + at);
    }
}

/* For v the gradient of the in_x above: the gradients in g, x and weight. g_hat and g_sum are the in_weight and in_bias above. */
void lowcurve_norm_second(long samples, int threads, long channels, long length, const float *v, const float *g, const float *x,
                          const float *weight, const float *mean, const float *invstd, const float *g_hat, const float *g_sum,
                          float *in_g, float *in_x, float *in_weight) {
    FOR_GROUPS(c) {
        Group group = GROUP_AT(c);
        long at = c * length;
        SecondOrder by;
        double sum[COLUMNS] = {0}, with_x[COLUMNS] = {0}, with_g[COLUMNS] = {0};
        find_means(group, mean + c, g_sum + c, &by);
        outer_sums_of(group, v + at, g + at, x + at, by.mean, by.g_mean, sum, with_x, with_g);
        find_second_order(group, sum, with_x, with_g, after(weight, c), invstd + c, g_hat + c, &by, in_weight + c);
        project_twice(group, v + at, g + at, x + at, &by, in_g + at, in_x + at);
    }
}

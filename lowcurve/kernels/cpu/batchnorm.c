/* Batch norm of (N, C, L) in training mode, float32: value with running statistics, gradient, second-order gradient.
 * Optional like softplus.c.
 */
#include "channels.h"

const long lowcurve_parts = PARTS, lowcurve_columns = COLUMNS;

typedef struct {
    Statistics of;
    float *y;
} Forward;

typedef struct {
    Gradient of;
    const float *g;
} Backward;

VECTORIZED static void normalize(Part part, const float *x, const Affine *by, float *y) {
    FOR_ROWS_BACKWARDS(at, size)
#pragma omp simd
        for (long i = 0; i < size; i++) y[at + i] = (x[at + i] - by->mean[i]) * by->scale[i] + by->bias[i];
}

static void value_phase(const void *job, Share share) {
    const Forward *of = job;
    Affine by;
    find_affine(first_part(share), &of->of, &by);
    FOR_PARTS_BACKWARDS(part, share) normalize(part, of->of.x, &by, of->y);
}

/* Add sum g and sum g (x - mean); mean is spread. */
VECTORIZED static void sums_of(Part part, const float *g, const float *x, const float *mean, double *sum, double *product) {
    FOR_PIECES(first, from, size) {
        float sums[COLUMNS] = {0}, products[COLUMNS] = {0};
        FOR_SAMPLES(first, from, at)
#pragma omp simd
            for (long i = 0; i < size; i++) {
                sums[i] += g[at + i];
                products[i] += g[at + i] * (x[at + i] - mean[i]);
            }
        add_columns(part, size, sums, sum);
        add_columns(part, size, products, product);
    }
}

static void gradient_sums_phase(const void *job, Share share) {
    const Backward *of = job;
    float mean[COLUMNS];
    spread(first_part(share), of->of.mean + share.c, mean);
    FOR_PARTS(part, share)
        sums_of(part, of->g, of->of.x, mean, new_sums(part, of->of.sums, 0), new_sums(part, of->of.sums, 1));
}

static void gradient_phase(const void *job, Share share) {
    const Backward *of = job;
    Projection by;
    find_projection(first_part(share), &of->of, &by);
    FOR_PARTS_BACKWARDS(part, share) project(part, of->g, of->of.x, &by, of->of.in_x);
}

/* Add sum v, sum v (x - mean) and sum v (g - g_mean). */
VECTORIZED static void outer_sums_of(Part part, const Outer *of, const Means *means, double *sum, double *with_x, double *with_g) {
    const float *v = of->v, *g = of->g, *x = of->x;
    FOR_PIECES(first, from, size) {
        float sums[COLUMNS] = {0}, in_x[COLUMNS] = {0}, in_g[COLUMNS] = {0};
        FOR_SAMPLES(first, from, at)
#pragma omp simd
            for (long i = 0; i < size; i++) {
                sums[i] += v[at + i];
                in_x[i] += v[at + i] * (x[at + i] - means->mean[i]);
                in_g[i] += v[at + i] * (g[at + i] - means->g_mean[i]);
            }
        add_columns(part, size, sums, sum);
        add_columns(part, size, in_x, with_x);
        add_columns(part, size, in_g, with_g);
    }
}

VECTORIZED static void project_twice(Part part, const Outer *of, const SecondOrder *by) {
    const float *v = of->v, *g = of->g, *x = of->x;
    float *in_g = of->in_g, *in_x = of->in_x;
    FOR_ROWS_BACKWARDS(at, size)
#pragma omp simd
        for (long i = 0; i < size; i++) {
            float centered = x[at + i] - by->means.mean[i], outer = v[at + i];
            in_g[at + i] = by->scale[i] * outer - by->slope[i] * centered - by->center[i];
            in_x[at + i] = by->in_v[i] * outer + by->in_g[i] * (g[at + i] - by->means.g_mean[i]) + by->in_x[i] * centered
                           - by->constant[i];
        }
}

static void second_sums_phase(const void *job, Share share) {
    const Outer *of = job;
    Means means;
    find_means(first_part(share), of, &means);
    FOR_PARTS(part, share)
        outer_sums_of(part, of, &means, new_sums(part, of->sums, 0), new_sums(part, of->sums, 1), new_sums(part, of->sums, 2));
}

static void second_phase(const void *job, Share share) {
    SecondOrder by;
    find_second_order(first_part(share), job, &by);
    FOR_PARTS_BACKWARDS(part, share) project_twice(part, job, &by);
}

/* y = weight (x - mean) invstd + bias per channel; running statistics move by momentum. weight, bias and the running
 * statistics may be null. Here and below `sums` is room for 4 PARTS channels numbers. */
void lowcurve_norm(long samples, int threads, long channels, long length, long mixed, const float *x, const float *weight,
                   const float *bias, float *running_mean, float *running_var, float momentum, float eps, float *y, float *mean,
                   float *invstd, double *sums) {
    Forward job = {{x, weight, bias, running_mean, running_var, momentum, eps, mean, invstd, sums}, y};
    Phase *const phases[] = {moments_phase, value_phase};
    in_phases(2, phases, &job, (Shape){samples, channels, length, mixed}, threads);
}

/* For g the gradient of y: in_x, in_weight = sum g x^ with x^ = (x - mean) invstd, and in_bias = sum g. */
void lowcurve_norm_gradient(long samples, int threads, long channels, long length, long mixed, const float *g, const float *x,
                            const float *weight, const float *mean, const float *invstd, float *in_x, float *in_weight,
                            float *in_bias, double *sums) {
    Backward job = {{x, weight, mean, invstd, in_x, in_weight, in_bias, sums}, g};
    Phase *const phases[] = {gradient_sums_phase, gradient_phase};
    in_phases(2, phases, &job, (Shape){samples, channels, length, mixed}, threads);
}

/* For v the gradient of the in_x above: the gradients in g, x and weight. g_hat and g_sum are the in_weight and in_bias above. */
void lowcurve_norm_second(long samples, int threads, long channels, long length, long mixed, const float *v, const float *g, const float *x,
                          const float *weight, const float *mean, const float *invstd, const float *g_hat, const float *g_sum,
                          float *in_g, float *in_x, float *in_weight, double *sums) {
    Outer job = {v, g, x, weight, mean, invstd, g_hat, g_sum, in_g, in_x, in_weight, sums};
    Phase *const phases[] = {second_sums_phase, second_phase};
    in_phases(2, phases, &job, (Shape){samples, channels, length, mixed}, threads);
}

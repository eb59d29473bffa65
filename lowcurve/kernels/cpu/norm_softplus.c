/* Batch norm, sum with a shortcut and softplus in one pass: y = s0(factor (BN(x) + other); beta) + shift, float32,
 * with gradient and second-order gradient.
 *
 * What stands between batch norm and activation is never written to memory. Optional like softplus.c; the formulas are those
 * of reference.py. For g the gradient of y, that of BN(x) is t = factor g sigma.
 */
#include "channels.h"
#include "softplus.h"

typedef struct {
    float factor, beta, shift;
} Activation;

typedef struct {
    Statistics of;
    const float *other; /* may be null */
    Activation a;
    float *y;
} Forward;

/* Kinds of sums besides those of Gradient: g (log 2 - H(sigma)). */
typedef struct {
    Gradient of; /* of the gradient t */
    const float *g, *y;
    Activation a;
    float *in_other, *in_beta; /* may be null */
} Backward;

typedef struct {
    Outer of; /* of the gradient t; its in_g is not used */
    const float *v_other, *g, *y; /* v_other may be null */
    Activation a;
    float *in_g, *in_y;
} Twice;

/* The INLINE functions below are compiled twice each: with and without an operand that may be null. */

INLINE void activate_rows(Part part, const Forward *of, const float *other, const Affine *by) {
    const float *x = of->of.x;
    float *y = of->y, inverse = 1.0f / of->a.beta;
    Activation a = of->a;
    FOR_ROWS_BACKWARDS(at, size)
#pragma omp simd
        for (long i = 0; i < size; i++) {
            float value = (x[at + i] - by->mean[i]) * by->scale[i] + by->bias[i];
            if (other) value += other[at + i];
            y[at + i] = softplus_(a.factor * value, a.beta, inverse, a.shift);
        }
}

VECTORIZED static void activate(Part part, const Forward *of, const Affine *by) {
    if (of->other) activate_rows(part, of, of->other, by);
    else activate_rows(part, of, 0, by);
}

static void value_phase(const void *job, Share share) {
    const Forward *of = job;
    Affine by;
    find_affine(first_part(share), &of->of, &by);
    FOR_PARTS_BACKWARDS(part, share) activate(part, of, &by);
}

/* Write t; add sum t, sum t (x - mean), and, unless deficit is null, sum g (log 2 - H(sigma)). mean is spread. */
INLINE void sum_rows(Part part, const Backward *of, const float *mean, float *t, double *sum, double *product, double *deficit) {
    const float *g = of->g, *y = of->y, *x = of->of.x;
    Activation a = of->a;
    FOR_PIECES(first, from, size) {
        float sums[COLUMNS] = {0}, products[COLUMNS] = {0}, deficits[COLUMNS] = {0};
        FOR_SAMPLES(first, from, at)
#pragma omp simd
            for (long i = 0; i < size; i++) {
                float centered_y = y[at + i] - a.shift, tau = tau_(centered_y, a.beta);
                float value = a.factor * g[at + i] * (0.5f + 0.5f * tau);
                sums[i] += value;
                products[i] += value * (x[at + i] - mean[i]);
                if (deficit) deficits[i] += g[at + i] * entropy_deficit(tau, a.beta * centered_y);
                t[at + i] = value;
            }
        add_columns(part, size, sums, sum);
        add_columns(part, size, products, product);
        if (deficit) add_columns(part, size, deficits, deficit);
    }
}

VECTORIZED static void sums_of(Part part, const Backward *of, const float *mean, float *t) {
    double *sum = new_sums(part, of->of.sums, 0), *product = new_sums(part, of->of.sums, 1);
    if (of->in_beta) sum_rows(part, of, mean, t, sum, product, new_sums(part, of->of.sums, 2));
    else sum_rows(part, of, mean, t, sum, product, 0);
}

static void gradient_sums_phase(const void *job, Share share) {
    const Backward *of = job;
    float mean[COLUMNS];
    spread(first_part(share), of->of.mean + share.c, mean);
    FOR_PARTS(part, share) sums_of(part, of, mean, of->in_other ? of->in_other : of->of.in_x);
}

static void gradient_phase(const void *job, Share share) {
    const Backward *of = job;
    Projection by;
    find_projection(first_part(share), &of->of, &by);
    FOR_PARTS_BACKWARDS(part, share) project(part, of->in_other ? of->in_other : of->of.in_x, of->of.x, &by, of->of.in_x);
}

/* Add sum v, sum v (x - mean) and sum v (t - t_mean). */
VECTORIZED static void outer_sums_of(Part part, const Twice *of, const Means *means, double *sum, double *with_x, double *with_t) {
    const float *v = of->of.v, *x = of->of.x, *g = of->g, *y = of->y;
    Activation a = of->a;
    FOR_PIECES(first, from, size) {
        float sums[COLUMNS] = {0}, in_x[COLUMNS] = {0}, in_t[COLUMNS] = {0};
        FOR_SAMPLES(first, from, at)
#pragma omp simd
            for (long i = 0; i < size; i++) {
                float t = a.factor * g[at + i] * (0.5f + 0.5f * tau_(y[at + i] - a.shift, a.beta));
                sums[i] += v[at + i];
                in_x[i] += v[at + i] * (x[at + i] - means->mean[i]);
                in_t[i] += v[at + i] * (t - means->g_mean[i]);
            }
        add_columns(part, size, sums, sum);
        add_columns(part, size, in_x, with_x);
        add_columns(part, size, in_t, with_t);
    }
}

/* With h the gradient in t: in_g = factor sigma h and in_y = h factor g beta (1 - sigma); and in_x. Returns
 * sum in_y (y - shift). */
INLINE double project_rows(Part part, const Twice *of, const float *v_other, const SecondOrder *by) {
    const float *v = of->of.v, *x = of->of.x, *g = of->g, *y = of->y;
    float *in_g = of->in_g, *in_y = of->in_y, *in_x = of->of.in_x;
    Activation a = of->a;
    double total = 0.0;
    FOR_ROWS_BACKWARDS(at, size) {
        float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
        for (long i = 0; i < size; i++) {
            float centered_y = y[at + i] - a.shift, tau = tau_(centered_y, a.beta), slope = a.factor * (0.5f + 0.5f * tau);
            float centered = x[at + i] - by->means.mean[i], outer = v[at + i];
            float h = by->scale[i] * outer - by->slope[i] * centered - by->center[i];
            if (v_other) h += v_other[at + i];
            float bend = h * g[at + i] * a.factor * a.beta * (0.5f - 0.5f * tau);
            in_g[at + i] = slope * h;
            in_y[at + i] = bend;
            in_x[at + i] = by->in_v[i] * outer + by->in_g[i] * (g[at + i] * slope - by->means.g_mean[i]) + by->in_x[i] * centered
                           - by->constant[i];
            sum += bend * centered_y;
        }
        total += sum;
    }
    return total;
}

VECTORIZED static double project_twice(Part part, const Twice *of, const SecondOrder *by) {
    return of->v_other ? project_rows(part, of, of->v_other, by) : project_rows(part, of, 0, by);
}

static void second_sums_phase(const void *job, Share share) {
    const Twice *of = job;
    Means means;
    double *sums = of->of.sums;
    find_means(first_part(share), &of->of, &means);
    FOR_PARTS(part, share)
        outer_sums_of(part, of, &means, new_sums(part, sums, 0), new_sums(part, sums, 1), new_sums(part, sums, 2));
}

static void second_phase(const void *job, Share share) {
    const Twice *of = job;
    SecondOrder by;
    find_second_order(first_part(share), &of->of, &by);
    FOR_PARTS_BACKWARDS(part, share) *new_sums(part, of->of.sums, 3) = project_twice(part, of, &by);
}

/* y = s0(factor (weight (x - mean) invstd + bias + other); beta) + shift per channel; running statistics move by momentum.
 * weight, bias, the running statistics and other may be null. Here and below `sums` is room for 4 PARTS channels numbers. */
void lowcurve_norm_softplus(long samples, int threads, long channels, long length, long mixed, const float *x, const float *weight,
                            const float *bias, float *running_mean, float *running_var, float momentum, float eps,
                            const float *other, float factor, float beta, float shift, float *y, float *mean, float *invstd,
                            double *sums) {
    Statistics of = {x, weight, bias, running_mean, running_var, momentum, eps, mean, invstd, sums};
    Forward job = {of, other, {factor, beta, shift}, y};
    Phase *const phases[] = {moments_phase, value_phase};
    in_phases(2, phases, &job, (Shape){samples, channels, length, mixed}, threads);
}

/* For g the gradient of y: in_x, in_other = t, in_weight = sum t x^ and in_bias = sum t, with x^ = (x - mean) invstd; and in_beta =
 * sum g (log 2 - H(sigma)) / beta, a single number. in_other and in_beta may be null. */
void lowcurve_norm_softplus_gradient(long samples, int threads, long channels, long length, long mixed, const float *g, const float *y,
                                     const float *x, const float *weight, const float *mean, const float *invstd, float factor,
                                     float beta, float shift, float *in_x, float *in_other, float *in_weight, float *in_bias,
                                     float *in_beta, double *sums) {
    Gradient of = {x, weight, mean, invstd, in_x, in_weight, in_bias, sums};
    Backward job = {of, g, y, {factor, beta, shift}, in_other, in_beta};
    Phase *const phases[] = {gradient_sums_phase, gradient_phase};
    Shape shape = {samples, channels, length, mixed};
    in_phases(2, phases, &job, shape, threads);
    if (in_beta) *in_beta = (float)(sum_of_all(shape, sums, 2) / beta);
}

/* For v and v_other the gradients of the in_x and in_other above: the gradients in g, y, x and weight, and in log beta, a single
 * number. t_hat and t_sum are the in_weight and in_bias above; v_other may be null. */
void lowcurve_norm_softplus_second(long samples, int threads, long channels, long length, long mixed, const float *v, const float *v_other,
                                   const float *g, const float *y, const float *x, const float *weight, const float *mean,
                                   const float *invstd, const float *t_hat, const float *t_sum, float factor, float beta,
                                   float shift, float *in_g, float *in_y, float *in_x, float *in_weight, float *in_beta,
                                   double *sums) {
    Outer of = {v, 0, x, weight, mean, invstd, t_hat, t_sum, 0, in_x, in_weight, sums};
    Twice job = {of, v_other, g, y, {factor, beta, shift}, in_g, in_y};
    Phase *const phases[] = {second_sums_phase, second_phase};
    Shape shape = {samples, channels, length, mixed};
    in_phases(2, phases, &job, shape, threads);
    *in_beta = (float)sum_of_all(shape, sums, 3);
}

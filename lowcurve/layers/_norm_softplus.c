/* Batch norm, sum with a shortcut and softplus in one pass: y = s0(factor (BN(x) + other); beta) + shift, float32,
 * with gradient and second-order gradient.
 *
 * What stands between batch norm and activation is never written to memory. Optional like _softplus.c; the formulas are those
 * of batchnorm_gradient.py and softplus.py, one after the other. For g the gradient of y, that of BN(x) is t = factor g sigma.
 */
#include "_channels.h"
#include "_softplus.h"

typedef struct {
    float factor, beta, shift;
} Activation;

/* The INLINE functions below are compiled twice each: with and without an operand that may be null. */

INLINE void activate_rows(Group group, const float *x, const float *other, const Affine *by, Activation a, float *y) {
    float inverse = 1.0f / a.beta;
    FOR_ROWS_BACKWARDS(at, size)
#pragma omp simd
        for (long i = 0; i < size; i++) {
            float value = (x[at + i] - by->mean[i]) * by->scale[i] + by->bias[i];
            if (other) value += other[at + i];
            y[at + i] = softplus_(a.factor * value, a.beta, inverse, a.shift);
        }
}

VECTORIZED static void activate(Group group, const float *x, const float *other, const Affine *by, Activation a, float *y) {
    if (other) activate_rows(group, x, other, by, a, y);
    else activate_rows(group, x, 0, by, a, y);
}

/* Write t; add sum t, sum t (x - mean), and, unless deficit is null, sum g (log 2 - H(sigma)). mean is spread. */
INLINE void sum_rows(Group group, const float *g, const float *y, const float *x, const float *mean, Activation a, float *t,
                     double *sum, double *product, double *deficit) {
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
        add_columns(group, size, sums, sum);
        add_columns(group, size, products, product);
        if (deficit) add_columns(group, size, deficits, deficit);
    }
}

VECTORIZED static void sums_of(Group group, const float *g, const float *y, const float *x, const float *mean, Activation a,
                               float *t, double *sum, double *product, double *deficit) {
    if (deficit) sum_rows(group, g, y, x, mean, a, t, sum, product, deficit);
    else sum_rows(group, g, y, x, mean, a, t, sum, product, 0);
}

/* Add sum v, sum v (x - mean) and sum v (t - t_mean); the means are spread. */
VECTORIZED static void outer_sums_of(Group group, const float *v, const float *g, const float *y, const float *x,
                                     const float *mean, const float *t_mean, Activation a, double *sum, double *with_x,
                                     double *with_t) {
    FOR_PIECES(first, from, size) {
        float sums[COLUMNS] = {0}, in_x[COLUMNS] = {0}, in_t[COLUMNS] = {0};
        FOR_SAMPLES(first, from, at)
#pragma omp simd
            for (long i = 0; i < size; i++) {
                float t = a.factor * g[at + i] * (0.5f + 0.5f * tau_(y[at + i] - a.shift, a.beta));
                sums[i] += v[at + i];
                in_x[i] += v[at + i] * (x[at + i] - mean[i]);
                in_t[i] += v[at + i] * (t - t_mean[i]);
            }
        add_columns(group, size, sums, sum);
        add_columns(group, size, in_x, with_x);
        add_columns(group, size, in_t, with_t);
    }
}

/* With h the gradient in t: in_g = factor sigma h and in_y = h factor g beta (1 - sigma); and in_x. Returns
 * sum in_y (y - shift). */
INLINE double project_rows(Group group, const float *v, const float *v_other, const float *g, const float *y, const float *x,
                           const SecondOrder *by, Activation a, float *in_g, float *in_y, float *in_x) {
    double total = 0.0;
    FOR_ROWS_BACKWARDS(at, size) {
        float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
        for (long i = 0; i < size; i++) {
            float centered_y = y[at + i] - a.shift, tau = tau_(centered_y, a.beta), slope = a.factor * (0.5f + 0.5f * tau);
            float centered = x[at + i] - by->mean[i], outer = v[at + i];
            float h = by->scale[i] * outer - by->slope[i] * centered - by->center[i];
            if (v_other) h += v_other[at + i];
            float bend = h * g[at + i] * a.factor * a.beta * (0.5f - 0.5f * tau);
            in_g[at + i] = slope * h;
            in_y[at + i] = bend;
            in_x[at + i] = by->in_v[i] * outer + by->in_g[i] * (g[at + i] * slope - by->g_mean[i]) + by->in_x[i] * centered
                           - by->constant[i];
            sum += bend * centered_y;
        }
        total += sum;
    }
    return total;
}

VECTORIZED static double project_twice(Group group, const float *v, const float *v_other, const float *g, const float *y,
                                       const float *x, const SecondOrder *by, Activation a, float *in_g, float *in_y,
                                       float *in_x) {
    return v_other ? project_rows(group, v, v_other, g, y, x, by, a, in_g, in_y, in_x)
                   : project_rows(group, v, 0, g, y, x, by, a, in_g, in_y, in_x);
}

/* y = s0(factor (weight (x - mean) invstd + bias + other); beta) + shift per channel; running statistics move by momentum.
 * weight, bias, the running statistics and other may be null. */
void lowcurve_norm_softplus(long samples, int threads, long channels, long length, const float *x, const float *weight,
                            const float *bias, float *running_mean, float *running_var, float momentum, float eps,
                            const float *other, float factor, float beta, float shift, float *y, float *mean, float *invstd) {
    Activation a = {factor, beta, shift};
    FOR_GROUPS(c) {
        Group group = GROUP_AT(c);
        long at = c * length;
        Affine by;
        find_affine(group, x + at, after(weight, c), after(bias, c), running_mean ? running_mean + c : 0,
                    running_var ? running_var + c : 0, momentum, eps, mean + c, invstd + c, &by);
        activate(group, x + at, after(other, at), &by, a, y + at);
    }
}

/* For g the gradient of y: in_x, in_other = t, in_weight = sum t x^ and in_bias = sum t, with x^ = (x - mean) invstd; and, per
 * channel, deficits = sum g (log 2 - H(sigma)). in_other and deficits may be null. */
void lowcurve_norm_softplus_gradient(long samples, int threads, long channels, long length, const float *g, const float *y,
                                     const float *x, const float *weight, const float *mean, const float *invstd, float factor,
                                     float beta, float shift, float *in_x, float *in_other, float *in_weight, float *in_bias,
                                     float *deficits) {
    Activation a = {factor, beta, shift};
    FOR_GROUPS(c) {
        Group group = GROUP_AT(c);
        long at = c * length;
        float *t = (in_other ? in_other : in_x) + at;
        Projection by;
        double sum[COLUMNS] = {0}, product[COLUMNS] = {0}, deficit[COLUMNS] = {0};
        spread(group, mean + c, by.mean);
        sums_of(group, g + at, y + at, x + at, by.mean, a, t, sum, product, deficits ? deficit : 0);
        for (long k = 0; deficits && k < group.channels; k++) deficits[c + k] = (float)deficit[k];
        find_projection(group, sum, product, after(weight, c), invstd + c, &by, in_weight + c, in_bias + c);
        project(group, t, x + at, &by, in_x + at);
    }
}

/* For v and v_other the gradients of the in_x and in_other above: the gradients in g, y, x and weight, and sums, one per group
 * of channels, that together are the gradient in log beta. t_hat and t_sum are the in_weight and in_bias above; v_other may be
 * null. */
void lowcurve_norm_softplus_second(long samples, int threads, long channels, long length, const float *v, const float *v_other,
                                   const float *g, const float *y, const float *x, const float *weight, const float *mean,
                                   const float *invstd, const float *t_hat, const float *t_sum, float factor, float beta,
                                   float shift, float *in_g, float *in_y, float *in_x, float *in_weight, float *in_beta) {
    Activation a = {factor, beta, shift};
    FOR_GROUPS(c) {
        Group group = GROUP_AT(c);
        long at = c * length;
        SecondOrder by;
        double sum[COLUMNS] = {0}, with_x[COLUMNS] = {0}, with_t[COLUMNS] = {0};
        find_means(group, mean + c, t_sum + c, &by);
        outer_sums_of(group, v + at, g + at, y + at, x + at, by.mean, by.g_mean, a, sum, with_x, with_t);
        find_second_order(group, sum, with_x, with_t, after(weight, c), invstd + c, t_hat + c, &by, in_weight + c);
        in_beta[c] = (float)project_twice(group, v + at, after(v_other, at), g + at, y + at, x + at, &by, a, in_g + at, in_y + at,
                                          in_x + at);
    }
}

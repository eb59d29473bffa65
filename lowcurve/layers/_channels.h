/* How the loops walk through the channels of a row-major (N, C, L), and what they compute of each in common.
 *
 * Adjacent channels make a group: as many as have COLUMNS values in a sample, which lie side by side in memory. A group is
 * still in the cache when the second walk (variance) and the third (result) come for it, where PyTorch walks through the whole
 * tensor for each. Numbers that belong to channels are spread over these columns, so that the innermost loops are long,
 * whatever L is. A sum has a float32 for every column, added up in float64 after at most BLOCK samples.
 */
#include "_loops.h"

#include <math.h>

#define COLUMNS 1024

typedef struct {
    long samples, step; /* a sample begins `step` values after the one before it */
    long channels, length, row; /* row = channels length, the group's values of one sample; more than COLUMNS for one channel only */
} Group;

static inline long lesser(long a, long b) { return a < b ? a : b; }

static inline const float *after(const float *values, long offset) { return values ? values + offset : 0; }

static inline Group group_at(long first, long together, long samples, long channels, long length) {
    long own = lesser(together, channels - first);
    return (Group){samples, channels * length, own, length, own * length};
}

/* For each group, in parallel: c is its first channel. */
#define FOR_GROUPS(c)                                                                                                          \
    long together = length < COLUMNS ? COLUMNS / length : 1;                                                                   \
    _Pragma("omp parallel for num_threads(threads) schedule(static) if (samples * channels * length > BLOCK)")                 \
    for (long c = 0; c < channels; c += together)
#define GROUP_AT(c) group_at(c, together, samples, channels, length)

/* Pieces of a group whose columns are summed in float32: samples from `first` on, `size` values of the row from `from` on. */
#define FOR_PIECES(first, from, size)                                                                                          \
    for (long first = 0; first < group.samples; first += BLOCK)                                                                \
        for (long from = 0, size; from < group.row; from += size)                                                              \
            if ((size = lesser(COLUMNS, group.row - from)))

/* The samples of a piece, which begin at `at` in memory. */
#define FOR_SAMPLES(first, from, at)                                                                                           \
    for (long at = first * group.step + from; at < lesser(first + BLOCK, group.samples) * group.step; at += group.step)

/* All rows in stretches of `size` values from `at` on, last sample first: a walk that follows sums over the same values finds
 * what was read last still in the cache. */
#define FOR_ROWS_BACKWARDS(at, size)                                                                                           \
    for (long n = group.samples - 1; n >= 0; n--)                                                                              \
        for (long at = n * group.step, size; at < n * group.step + group.row; at += size)                                      \
            if ((size = lesser(COLUMNS, n * group.step + group.row - at)))

/* Write each channel's value to its columns; `columns` may be `values`, of which there are not more. */
static void spread(Group group, const float *values, float *columns) {
    long width = lesser(COLUMNS, group.length);
    for (long k = group.channels - 1; k >= 0; k--) {
        float value = values[k];
        for (long i = k * width; i < (k + 1) * width; i++) columns[i] = value;
    }
}

/* totals[k] += the sum of channel k's columns */
VECTORIZED static void add_columns(Group group, long size, const float *columns, double *totals) {
    long width = lesser(size, group.length);
    for (long k = 0; k < group.channels; k++) {
        double sum = 0.0;
#pragma omp simd reduction(+ : sum)
        for (long i = k * width; i < (k + 1) * width; i++) sum += columns[i];
        totals[k] += sum;
    }
}

VECTORIZED static void sum_of(Group group, const float *x, double *totals) {
    FOR_PIECES(first, from, size) {
        float sums[COLUMNS] = {0};
        FOR_SAMPLES(first, from, at)
#pragma omp simd
            for (long i = 0; i < size; i++) sums[i] += x[at + i];
        add_columns(group, size, sums, totals);
    }
}

/* mean is spread */
VECTORIZED static void squares_of(Group group, const float *x, const float *mean, double *totals) {
    FOR_PIECES(first, from, size) {
        float sums[COLUMNS] = {0};
        FOR_SAMPLES(first, from, at)
#pragma omp simd
            for (long i = 0; i < size; i++) sums[i] += (x[at + i] - mean[i]) * (x[at + i] - mean[i]);
        add_columns(group, size, sums, totals);
    }
}

/* What normalizes: value = scale (x - mean) + bias, spread. */
typedef struct {
    float mean[COLUMNS], scale[COLUMNS], bias[COLUMNS];
} Affine;

/* Find the group's mean and 1/std, move the running statistics by momentum, and return what normalizes. Pointers are to the
 * group's first channel; weight, bias and the running statistics may be null. */
static void find_affine(Group group, const float *x, const float *weight, const float *bias, float *running_mean,
                        float *running_var, float momentum, float eps, float *mean, float *invstd, Affine *found) {
    double count = (double)group.samples * (double)group.length, sums[COLUMNS] = {0}, squares[COLUMNS] = {0};
    sum_of(group, x, sums);
    for (long k = 0; k < group.channels; k++) mean[k] = (float)(sums[k] / count);
    spread(group, mean, found->mean);
    squares_of(group, x, found->mean, squares);
    for (long k = 0; k < group.channels; k++) {
        invstd[k] = (float)(1.0 / sqrt(squares[k] / count + eps));
        found->scale[k] = weight ? weight[k] * invstd[k] : invstd[k];
        found->bias[k] = bias ? bias[k] : 0.0f;
        if (running_mean) running_mean[k] = (1 - momentum) * running_mean[k] + momentum * mean[k];
        if (running_var) {
            float variance = (float)(squares[k] / (count > 1 ? count - 1 : 1));
            running_var[k] = (1 - momentum) * running_var[k] + momentum * variance;
        }
    }
    spread(group, found->scale, found->scale);
    spread(group, found->bias, found->bias);
}

/* The gradient in x: scale (g - center - slope (x - mean)), spread. */
typedef struct {
    float mean[COLUMNS], scale[COLUMNS], center[COLUMNS], slope[COLUMNS];
} Projection;

/* From sum g and sum g (x - mean) of each channel; also write the gradients in weight and bias. `found->mean` is there. */
static void find_projection(Group group, const double *sum, const double *product, const float *weight, const float *invstd,
                            Projection *found, float *in_weight, float *in_bias) {
    double count = (double)group.samples * (double)group.length;
    for (long k = 0; k < group.channels; k++) {
        in_weight[k] = (float)(product[k] * invstd[k]);
        in_bias[k] = (float)sum[k];
        found->scale[k] = weight ? weight[k] * invstd[k] : invstd[k];
        found->center[k] = (float)(sum[k] / count);
        found->slope[k] = (float)(product[k] / count * invstd[k] * invstd[k]);
    }
    spread(group, found->scale, found->scale);
    spread(group, found->center, found->center);
    spread(group, found->slope, found->slope);
}

/* in_x may be g */
VECTORIZED static void project(Group group, const float *g, const float *x, const Projection *by, float *in_x) {
    FOR_ROWS_BACKWARDS(at, size)
#pragma omp simd
        for (long i = 0; i < size; i++)
            in_x[at + i] = (g[at + i] - by->center[i] - (x[at + i] - by->mean[i]) * by->slope[i]) * by->scale[i];
}

/* The gradients of <v, the gradient in x>: scale v - slope (x - mean) - center in g, and
 * in_v v + in_g (g - g_mean) + in_x (x - mean) - constant in x; spread. */
typedef struct {
    float mean[COLUMNS], g_mean[COLUMNS], scale[COLUMNS], slope[COLUMNS], center[COLUMNS];
    float in_v[COLUMNS], in_g[COLUMNS], in_x[COLUMNS], constant[COLUMNS];
} SecondOrder;

static void find_means(Group group, const float *mean, const float *g_sum, SecondOrder *found) {
    double count = (double)group.samples * (double)group.length;
    for (long k = 0; k < group.channels; k++) found->g_mean[k] = (float)(g_sum[k] / count);
    spread(group, found->g_mean, found->g_mean);
    spread(group, mean, found->mean);
}

/* From g_hat = sum g x^, and sum v, sum v (x - mean) and sum v (g - g_mean) of each channel, as derived in
 * batchnorm_gradient.py; also write the gradient in weight. The means are there. */
static void find_second_order(Group group, const double *sum, const double *with_x, const double *with_g, const float *weight,
                              const float *invstd, const float *g_hat, SecondOrder *found, float *in_weight) {
    double count = (double)group.samples * (double)group.length;
    for (long k = 0; k < group.channels; k++) {
        double r = invstd[k], scale = weight ? weight[k] * r : r;
        double a_g = g_hat[k] / count, a_v = with_x[k] * r / count, m_v = sum[k] / count, s = with_g[k] / count - a_v * a_g;
        in_weight[k] = (float)(r * s * count);
        found->scale[k] = (float)scale;
        found->slope[k] = (float)(scale * a_v * r);
        found->center[k] = (float)(scale * m_v);
        found->in_v[k] = (float)(-scale * r * a_g);
        found->in_g[k] = (float)(-scale * r * a_v);
        found->in_x[k] = (float)(-scale * r * (s - 2 * a_v * a_g) * r);
        found->constant[k] = (float)(-scale * r * a_g * m_v);
    }
    float *spreading[] = {found->scale, found->slope, found->center, found->in_v, found->in_g, found->in_x, found->constant};
    for (int i = 0; i < 7; i++) spread(group, spreading[i], spreading[i]);
}

/* How the loops walk through the channels of a tensor (N, C, L), and what they compute of each in common.
 *
 * Row-major: adjacent channels make a group, as many as have COLUMNS values in a sample, which lie side by side in memory. Its
 * samples are split into parts, one for each of as many threads, usually small enough to be still in a core's own cache when the
 * last walk (result) comes for them, where PyTorch walks through the whole tensor for each.
 * Channels last, also called mixed: a "sample" is `length` neighboring positions of all channels, in which channels alternate.
 * Numbers that belong to channels are spread over the columns, so that the innermost loops are long, whatever L is. A sum has
 * a float32 for every column, added up in float64 after a piece of at most RUN samples, which stays in the cache: its squares
 * are summed around its own mean at once. No result depends on the number of threads.
 */
#include "loops.h"

#include <math.h>
#include <omp.h>
#include <string.h>

#define COLUMNS 1024
#define PARTS 32 /* at most; row-major tensors have ROW_MAJOR_PARTS */
#define ROW_MAJOR_PARTS 2
#define RUN 64
#define SHORTEST 32 /* samples of a part of a mixed tensor that has more than one */

/* The tensor: `samples` of `channels` times `length` values. */
typedef struct {
    long samples, channels, length, mixed;
} Shape;

/* A part of a group: `samples` rows of `row` = channels length values, which begin every `step` values, the first at `at`. `c` is
 * the first channel, `index` says which of the `parts` it is. Only a row-major group of one channel may have more values than
 * COLUMNS. */
typedef struct {
    long samples, all_samples, channels, all_channels, length, row, step, at, c, index, parts, mixed;
} Part;

/* What a thread works on: of the group of up to `together` channels from `c` on the parts from `from` up to, without, `to`. */
typedef struct {
    Shape shape;
    long c, together, from, to;
} Share;

typedef void Phase(const void *job, Share share);

static inline long parts_of(Shape shape) {
    if (!shape.mixed) return ROW_MAJOR_PARTS;
    return shape.samples < 2 * SHORTEST ? 1 : lesser(PARTS, shape.samples / SHORTEST);
}

static Part part_at(Share share, long index) {
    Shape shape = share.shape;
    long parts = parts_of(shape), first = shape.samples * index / parts, own = lesser(share.together, shape.channels - share.c);
    long step = shape.channels * shape.length;
    return (Part){.samples = shape.samples * (index + 1) / parts - first,
                  .all_samples = shape.samples,
                  .channels = own,
                  .all_channels = shape.channels,
                  .length = shape.length,
                  .row = own * shape.length,
                  .step = step,
                  .at = first * step + (shape.mixed ? share.c : share.c * shape.length),
                  .c = share.c,
                  .index = index,
                  .parts = parts,
                  .mixed = shape.mixed};
}

/* The first of a share's parts: what all of them have in common is found in its name, and written where it is the group's first. */
static inline Part first_part(Share share) { return part_at(share, share.from); }

#define FOR_PARTS(part, share)                                                                                                 \
    for (long index = share.from; index < share.to; index++)                                                                   \
        for (Part part = part_at(share, index), *once = &part; once; once = 0)

/* Last part first: a walk that follows another over the same values finds what was read last still in the cache. */
#define FOR_PARTS_BACKWARDS(part, share)                                                                                       \
    for (long index = share.to - 1; index >= share.from; index--)                                                              \
        for (Part part = part_at(share, index), *once = &part; once; once = 0)

static inline double count_of(Part part) { return (double)part.all_samples * (double)part.length; }

/* Run the phases for each group in turn: no part of it enters one before all parts have left the one before. */
static void in_phases(int count, Phase *const *phases, const void *job, Shape shape, int threads) {
    long together = shape.mixed ? lesser(COLUMNS, shape.channels) : shape.length < COLUMNS ? COLUMNS / shape.length : 1;
    long parts = parts_of(shape);
#pragma omp parallel num_threads(shape.samples * shape.channels * shape.length > BLOCK ? threads : 1)
    {
        long members = lesser(omp_get_num_threads(), parts), teams = omp_get_num_threads() / members;
        long team = omp_get_thread_num() / members, member = omp_get_thread_num() % members;
        for (long turn = 0; turn < shape.channels; turn += teams * together) {
            Share share = {shape, turn + team * together, together, parts * member / members, parts * (member + 1) / members};
            for (int phase = 0; phase < count; phase++) {
                if (team < teams && share.c < shape.channels) phases[phase](job, share);
#pragma omp barrier
            }
        }
    }
}

/* Pieces of a part whose columns are summed in float32: samples from `first` on, `size` values of the row from `from` on. */
#define FOR_PIECES(first, from, size)                                                                                          \
    for (long first = 0; first < part.samples; first += RUN)                                                                   \
        for (long from = 0, size; from < part.row; from += size)                                                               \
            if ((size = lesser(COLUMNS, part.row - from)))

/* The samples of a piece, which begin at `at` in memory. */
#define FOR_SAMPLES(first, from, at)                                                                                           \
    for (long n = first, at = part.at + n * part.step + from; n < lesser(first + RUN, part.samples); n++, at += part.step)

/* All rows in stretches of `size` values from `at` on, last sample first. */
#define FOR_ROWS_BACKWARDS(at, size)                                                                                           \
    for (long n = part.samples - 1; n >= 0; n--)                                                                               \
        for (long from = 0, at, size; from < part.row; from += size)                                                           \
            if (at = part.at + n * part.step + from, (size = lesser(COLUMNS, part.row - from)))

/* Write each channel's value to its columns; `columns` may be `values`, of which there are not more. */
static void spread(Part part, const float *values, float *columns) {
    if (part.mixed) {
        memmove(columns, values, part.channels * sizeof(float));
        for (long i = part.channels; i < part.row; i++) columns[i] = columns[i - part.channels];
        return;
    }
    long width = lesser(COLUMNS, part.length);
    for (long k = part.channels - 1; k >= 0; k--) {
        float value = values[k];
        for (long i = k * width; i < (k + 1) * width; i++) columns[i] = value;
    }
}

/* Sums have PARTS rows of all channels for each kind. Those of this part's channels, set to 0: */
static double *new_sums(Part part, double *sums, long kind) {
    double *own = sums + (kind * PARTS + part.index) * part.all_channels + part.c;
    memset(own, 0, part.channels * sizeof(double));
    return own;
}

/* The sum over all parts for the group's channel k. */
static double whole_sum(Part part, const double *sums, long kind, long k) {
    double sum = 0.0;
    for (long p = 0; p < part.parts; p++) sum += sums[(kind * PARTS + p) * part.all_channels + part.c + k];
    return sum;
}

/* The sum over all parts and channels. */
static inline double sum_of_all(Shape shape, const double *sums, long kind) {
    double sum = 0.0;
    const double *own = sums + kind * PARTS * shape.channels;
    for (long i = 0; i < parts_of(shape) * shape.channels; i++) sum += own[i];
    return sum;
}

/* totals[k] += the sum of channel k's columns */
VECTORIZED static void add_columns(Part part, long size, const float *columns, double *totals) {
    if (part.mixed) {
        for (long i = 0; i < size; i += part.channels)
#pragma omp simd
            for (long k = 0; k < part.channels; k++) totals[k] += columns[i + k];
        return;
    }
    long width = lesser(size, part.length);
    for (long k = 0; k < part.channels; k++) {
        double sum = 0.0;
#pragma omp simd reduction(+ : sum)
        for (long i = k * width; i < (k + 1) * width; i++) sum += columns[i];
        totals[k] += sum;
    }
}

/* Add sum x, and the sum of squares around its mean, by pieces: a first walk finds a center, a second, in the cache, sums
 * d = x - center and d^2. Of two sets with n and m values and means a and b the sum of squares around their common mean is
 * the sum of both around their own, and (a - b)^2 n m / (n + m). */
VECTORIZED static void moments_of(Part part, const float *x, double *totals, double *squares) {
    double before = 0.0;
    FOR_PIECES(first, from, size) {
        float columns[COLUMNS] = {0}, products[COLUMNS] = {0}, center[COLUMNS];
        double own[COLUMNS] = {0};
        double count = (double)(lesser(RUN, part.samples - first) * (part.mixed ? part.length : lesser(size, part.length)));
        FOR_SAMPLES(first, from, at)
#pragma omp simd
            for (long i = 0; i < size; i++) columns[i] += x[at + i];
        add_columns(part, size, columns, own);
        for (long k = 0; k < part.channels; k++) center[k] = (float)(own[k] / count), own[k] = count * center[k];
        spread(part, center, center);
        for (long i = 0; i < size; i++) columns[i] = 0.0f;
        FOR_SAMPLES(first, from, at)
#pragma omp simd
            for (long i = 0; i < size; i++) {
                float apart = x[at + i] - center[i];
                columns[i] += apart;
                products[i] += apart * apart;
            }
        double rest[COLUMNS] = {0};
        add_columns(part, size, columns, rest);
        add_columns(part, size, products, squares);
        for (long k = 0; k < part.channels; k++) {
            own[k] += rest[k];
            double apart = before > 0 ? own[k] / count - totals[k] / before : 0.0;
            squares[k] += apart * apart * (before * count / (before + count)) - rest[k] * rest[k] / count;
            totals[k] += own[k];
        }
        before += count;
    }
}

/* What a forward is given, to find and to move; weight, bias and the running statistics may be null. Kinds of sums: x, and
 * (x - mean)^2 with each part's own mean. */
typedef struct {
    const float *x, *weight, *bias;
    float *running_mean, *running_var, momentum, eps, *mean, *invstd;
    double *sums;
} Statistics;

/* The first phase of a forward, whose job begins with Statistics. */
static void moments_phase(const void *job, Share share) {
    const Statistics *of = job;
    FOR_PARTS(part, share) moments_of(part, of->x, new_sums(part, of->sums, 0), new_sums(part, of->sums, 1));
}

/* sum (x - mean)^2 over all parts for the group's channel k */
static double whole_squares(Part part, const double *sums, long k, double mean) {
    double squares = whole_sum(part, sums, 1, k);
    for (long p = 0; p < part.parts; p++) {
        long samples = part.all_samples * (p + 1) / part.parts - part.all_samples * p / part.parts;
        double count = (double)samples * (double)part.length, sum = sums[p * part.all_channels + part.c + k];
        if (samples > 0) squares += count * (sum / count - mean) * (sum / count - mean);
    }
    return squares;
}

/* What normalizes: value = scale (x - mean) + bias, spread. */
typedef struct {
    float mean[COLUMNS], scale[COLUMNS], bias[COLUMNS];
} Affine;

/* In the second phase find that, and, once for all parts, write mean and 1/std and move the running statistics. */
static void find_affine(Part part, const Statistics *of, Affine *found) {
    double count = count_of(part);
    for (long k = 0, c = part.c; k < part.channels; k++, c++) {
        double mean = whole_sum(part, of->sums, 0, k) / count, squares = whole_squares(part, of->sums, k, mean);
        float invstd = (float)(1.0 / sqrt(squares / count + of->eps));
        found->mean[k] = (float)mean;
        found->scale[k] = of->weight ? of->weight[c] * invstd : invstd;
        found->bias[k] = of->bias ? of->bias[c] : 0.0f;
        if (part.index > 0) continue;
        of->mean[c] = found->mean[k], of->invstd[c] = invstd;
        if (of->running_mean) of->running_mean[c] = (1 - of->momentum) * of->running_mean[c] + of->momentum * of->mean[c];
        if (of->running_var) {
            float variance = (float)(squares / (count > 1 ? count - 1 : 1));
            of->running_var[c] = (1 - of->momentum) * of->running_var[c] + of->momentum * variance;
        }
    }
    spread(part, found->mean, found->mean);
    spread(part, found->scale, found->scale);
    spread(part, found->bias, found->bias);
}

/* What a gradient g of the value is given and leads to; weight may be null. in_weight = sum g x^ with x^ = (x - mean) invstd,
 * in_bias = sum g. Kinds of sums: g, and g (x - mean). */
typedef struct {
    const float *x, *weight, *mean, *invstd;
    float *in_x, *in_weight, *in_bias;
    double *sums;
} Gradient;

/* The gradient in x: scale (g - center - slope (x - mean)), spread. */
typedef struct {
    float mean[COLUMNS], scale[COLUMNS], center[COLUMNS], slope[COLUMNS];
} Projection;

/* In the second phase find that, and, once for all parts, write in_weight and in_bias. */
static void find_projection(Part part, const Gradient *of, Projection *found) {
    double count = count_of(part);
    for (long k = 0, c = part.c; k < part.channels; k++, c++) {
        double sum = whole_sum(part, of->sums, 0, k), product = whole_sum(part, of->sums, 1, k) * of->invstd[c];
        found->scale[k] = of->weight ? of->weight[c] * of->invstd[c] : of->invstd[c];
        found->center[k] = (float)(sum / count);
        found->slope[k] = (float)(product / count * of->invstd[c]);
        if (part.index > 0) continue;
        of->in_weight[c] = (float)product;
        of->in_bias[c] = (float)sum;
    }
    spread(part, of->mean + part.c, found->mean);
    spread(part, found->scale, found->scale);
    spread(part, found->center, found->center);
    spread(part, found->slope, found->slope);
}

/* in_x may be g */
VECTORIZED static void project(Part part, const float *g, const float *x, const Projection *by, float *in_x) {
    FOR_ROWS_BACKWARDS(at, size)
#pragma omp simd
        for (long i = 0; i < size; i++)
            in_x[at + i] = (g[at + i] - by->center[i] - (x[at + i] - by->mean[i]) * by->slope[i]) * by->scale[i];
}

/* What a gradient v of the in_x above is given and leads to; weight may be null. g_hat and g_sum are the in_weight and in_bias
 * above. Kinds of sums: v, v (x - mean), v (g - g_mean). */
typedef struct {
    const float *v, *g, *x, *weight, *mean, *invstd, *g_hat, *g_sum;
    float *in_g, *in_x, *in_weight;
    double *sums;
} Outer;

/* The means of x and g, spread. */
typedef struct {
    float mean[COLUMNS], g_mean[COLUMNS];
} Means;

static void find_means(Part part, const Outer *of, Means *found) {
    for (long k = 0; k < part.channels; k++) found->g_mean[k] = (float)(of->g_sum[part.c + k] / count_of(part));
    spread(part, found->g_mean, found->g_mean);
    spread(part, of->mean + part.c, found->mean);
}

/* The gradients of <v, in_x>: scale v - slope (x - mean) - center in g, and
 * in_v v + in_g (g - g_mean) + in_x (x - mean) - constant in x; spread. */
typedef struct {
    Means means;
    float scale[COLUMNS], slope[COLUMNS], center[COLUMNS], in_v[COLUMNS], in_g[COLUMNS], in_x[COLUMNS], constant[COLUMNS];
} SecondOrder;

/* In the second phase find that, as derived in reference.py, and, once for all parts, write in_weight. */
static void find_second_order(Part part, const Outer *of, SecondOrder *found) {
    double count = count_of(part);
    find_means(part, of, &found->means);
    for (long k = 0, c = part.c; k < part.channels; k++, c++) {
        double r = of->invstd[c], scale = of->weight ? of->weight[c] * r : r, a_g = of->g_hat[c] / count;
        double m_v = whole_sum(part, of->sums, 0, k) / count, a_v = whole_sum(part, of->sums, 1, k) * r / count;
        double s = whole_sum(part, of->sums, 2, k) / count - a_v * a_g;
        found->scale[k] = (float)scale;
        found->slope[k] = (float)(scale * a_v * r);
        found->center[k] = (float)(scale * m_v);
        found->in_v[k] = (float)(-scale * r * a_g);
        found->in_g[k] = (float)(-scale * r * a_v);
        found->in_x[k] = (float)(-scale * r * (s - 2 * a_v * a_g) * r);
        found->constant[k] = (float)(-scale * r * a_g * m_v);
        if (part.index == 0) of->in_weight[c] = (float)(r * s * count);
    }
    float *spreading[] = {found->scale, found->slope, found->center, found->in_v, found->in_g, found->in_x, found->constant};
    for (int i = 0; i < 7; i++) spread(part, spreading[i], spreading[i]);
}

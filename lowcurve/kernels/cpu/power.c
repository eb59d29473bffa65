/* Singular vectors of many convolutions at once by Lanczos's method, float32: one thread per layer, which usually stays in that core's
 * cache. A single layer is iterated by a single thread.
 *
 * A convolution is a product with the matrix of columns: one for each output position, of all the input values that it sees.
 * Columns are made for a few output rows at a time; a stride of 1 and rows that are not short need none (flat.h). Where there are
 * too few positions to fill a vector register, the whole map is written out as one matrix instead. Optional like softplus.c.
 */
#include "flat.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define DIMENSIONS 10 /* of the space in which singular vectors are looked for */
#define SETTLED 5e-3  /* residual, as a share of the eigenvalue, above which they are looked for once more, */
#define SPACES 4      /* in so many spaces at most */
#define POSITIONS 128 /* output positions, at least, whose columns are made at a time */
#define DENSE (1 << 17) /* entries of a map, at most, that is written out where its output positions fill no vector */
#define NARROWEST 8   /* row of outputs of a map that is computed without columns */

typedef struct {
    const float *weight;         /* out x in x kernel_h x kernel_w */
    float *left, *right, *slope; /* u: out x out_h x out_w; v: in x height x width; S: like weight */
    float *scratch;              /* see lowcurve_power_room */
    long in, out, height, width, out_h, out_w, kernel_h, kernel_w, stride_h, stride_w, above, before;
} Layer;

/* c += a b, ROWS x WIDTH; a[i, k] is at i a_row + k a_step, rows of b and c are b_row and c_row apart. */
INLINE void add_tile(long inner, const float *a, long a_row, long a_step, const float *b, long b_row, float *c, long c_row) {
    Wide sum[ROWS];
    for (long i = 0; i < ROWS; i++) sum[i] = *(Wide *)(c + i * c_row);
    for (long k = 0; k < inner; k++) {
        Wide row = *(const Wide *)(b + k * b_row);
        for (long i = 0; i < ROWS; i++) sum[i] += a[i * a_row + k * a_step] * row;
    }
    for (long i = 0; i < ROWS; i++) *(Wide *)(c + i * c_row) = sum[i];
}

/* The same for what is left over at the edges. */
INLINE void add_rest(long rows, long width, long inner, const float *a, long a_row, long a_step, const float *b, long b_row,
                     float *c, long c_row) {
    for (long i = 0; i < rows; i++)
        for (long k = 0; k < inner; k++)
            for (long j = 0; j < width; j++) c[i * c_row + j] += a[i * a_row + k * a_step] * b[k * b_row + j];
}

VECTORIZED static void add_product(long rows, long inner, long columns, const float *a, long a_row, long a_step, const float *b,
                                   long b_row, float *c, long c_row) {
    for (long j = 0; j < columns; j += WIDTH)
        for (long i = 0; i < rows; i += ROWS) {
            long high = lesser(ROWS, rows - i), wide = lesser(WIDTH, columns - j);
            const float *own_a = a + i * a_row, *own_b = b + j;
            float *own_c = c + i * c_row + j;
            if (high == ROWS && wide == WIDTH) add_tile(inner, own_a, a_row, a_step, own_b, b_row, own_c, c_row);
            else add_rest(high, wide, inner, own_a, a_row, a_step, own_b, b_row, own_c, c_row);
        }
}

/* The first output position in a row, and the one after the last, at which kernel column j sees a pixel of the image. */
static inline long first_inside(const Layer *l, long j) { return j < l->before ? (l->before - j + l->stride_w - 1) / l->stride_w : 0; }
static inline long after_inside(const Layer *l, long j) {
    long reach = l->width + l->before - j;
    return reach <= 0 ? 0 : lesser(l->out_w, (reach + l->stride_w - 1) / l->stride_w);
}

/* Between an image and the columns of `rows` output rows from `first` on: copy its values to them, or add them to it, the
 * transpose. The columns are a matrix, whose row (c, i, j) has for each output position the pixel under that kernel entry. */
INLINE void exchange(const Layer *l, float *image, long first, long rows, float *columns, int gathering) {
    for (long c = 0; c < l->in; c++)
        for (long i = 0; i < l->kernel_h; i++)
            for (long j = 0; j < l->kernel_w; j++) {
                long from = first_inside(l, j), to = after_inside(l, j);
                for (long r = first; r < first + rows; r++, columns += l->out_w) {
                    long h = r * l->stride_h + i - l->above;
                    if (gathering) memset(columns, 0, l->out_w * sizeof(float));
                    if (h < 0 || h >= l->height) continue;
                    float *row = image + (c * l->height + h) * l->width + j - l->before;
                    for (long p = from; p < to; p++)
                        if (gathering) columns[p] = row[p * l->stride_w];
                        else row[p * l->stride_w] += columns[p];
                }
            }
}

VECTORIZED static void gather(const Layer *l, float *image, long first, long rows, float *columns) {
    exchange(l, image, first, rows, columns, 1);
}

VECTORIZED static void scatter(const Layer *l, float *columns, long first, long rows, float *image) {
    exchange(l, image, first, rows, columns, 0);
}

/* Divide x by its length, which is returned. */
VECTORIZED static double make_unit(long n, float *x) {
    double squares = 0.0;
#pragma omp simd reduction(+ : squares)
    for (long i = 0; i < n; i++) squares += (double)x[i] * x[i];
    float norm = (float)sqrt(squares), scale = 1.0f / (norm < FLT_MIN ? FLT_MIN : norm);
    for (long i = 0; i < n; i++) x[i] *= scale;
    return sqrt(squares);
}

/* to = the transpose of from, rows x columns, in blocks that fit in the cache */
static void turn(long rows, long columns, const float *from, float *to) {
    for (long block = 0; block < columns; block += WIDTH)
        for (long i = 0; i < rows; i++)
            for (long j = block; j < lesser(block + WIDTH, columns); j++) to[j * rows + i] = from[i * columns + j];
}

/* Output rows whose columns are made at a time. */
static inline long rows_together(const Layer *l) { return lesser(l->out_h, l->out_w < POSITIONS ? POSITIONS / l->out_w : 1); }

static inline long inputs_of(const Layer *l) { return l->in * l->height * l->width; }
static inline long outputs_of(const Layer *l) { return l->out * l->out_h * l->out_w; }

/* Whether the map is written out: a matrix of outputs x inputs, in the place of the columns. */
static inline int is_dense(const Layer *l) { return l->out_h * l->out_w < WIDTH && inputs_of(l) * outputs_of(l) <= DENSE; }

/* Row (o, y, x) of the matrix has the weights with which that output sees each input. */
static void write_out(const Layer *l, float *matrix) {
    long inputs = inputs_of(l), size = l->kernel_h * l->kernel_w;
    memset(matrix, 0, inputs * outputs_of(l) * sizeof(float));
    for (long o = 0; o < l->out; o++)
        for (long y = 0; y < l->out_h; y++)
            for (long x = 0; x < l->out_w; x++, matrix += inputs)
                for (long k = 0; k < size; k++) {
                    long h = y * l->stride_h + k / l->kernel_w - l->above, w = x * l->stride_w + k % l->kernel_w - l->before;
                    if (h < 0 || h >= l->height || w < 0 || w >= l->width) continue;
                    const float *weight = l->weight + o * l->in * size + k;
                    for (long c = 0; c < l->in; c++) matrix[(c * l->height + h) * l->width + w] = weight[c * size];
                }
}

/* v = W^T u */
VECTORIZED static void dense_adjoint(long inputs, long outputs, const float *matrix, const float *u, float *v) {
    memset(v, 0, inputs * sizeof(float));
    for (long o = 0; o < outputs; o++)
        for (long i = 0; i < inputs; i++) v[i] += u[o] * matrix[o * inputs + i];
}

/* u = W v */
VECTORIZED static void dense_apply(long inputs, long outputs, const float *matrix, const float *v, float *u) {
    for (long o = 0; o < outputs; o++) {
        float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
        for (long i = 0; i < inputs; i++) sum += matrix[o * inputs + i] * v[i];
        u[o] = sum;
    }
}

/* Whether the map and its transpose are computed without columns. */
static inline int is_flat(const Layer *l) {
    return l->stride_h == 1 && l->stride_w == 1 && lesser(l->width, l->out_w) >= NARROWEST;
}

/* The map, whose packed weight is at `weight`. */
static Flat forwards(const Layer *l, float *weight) {
    return (Flat){l->in, l->out, l->height, l->width, l->out_h, l->out_w, l->kernel_h, l->kernel_w, l->above, l->before, weight};
}

/* Its transpose: the kernel is turned around, and the border is what the kernel reaches beyond the map's own. */
static Flat backwards(const Layer *l, float *weight) {
    long above = l->kernel_h - 1 - l->above, before = l->kernel_w - 1 - l->before;
    return (Flat){l->out, l->in, l->out_h, l->out_w, l->height, l->width, l->kernel_h, l->kernel_w, above, before, weight};
}

/* Where things are in the place of the columns: both packed weights, then room for either direction. */
static Flat backwards_at(const Layer *l, float *columns) {
    Flat there = forwards(l, columns);
    return backwards(l, columns + packed_size(&there));
}

static inline long packed_of(const Layer *l) {
    Flat there = forwards(l, 0), back = backwards(l, 0);
    return packed_size(&there) + packed_size(&back);
}

static inline long flat_size(const Layer *l) {
    Flat there = forwards(l, 0), back = backwards(l, 0);
    return packed_of(l) + (flat_room(&there) > flat_room(&back) ? flat_room(&there) : flat_room(&back));
}

/* Floats of the columns that are made at a time, or of the matrix, or of what stands for it; S needs columns in any case. */
static inline long columns_of(const Layer *l) {
    long columns = l->in * l->kernel_h * l->kernel_w * rows_together(l) * l->out_w;
    long other = is_dense(l) ? inputs_of(l) * outputs_of(l) : is_flat(l) ? flat_size(l) : 0;
    return other > columns ? other : columns;
}

static void pack(const Layer *l, float *columns) {
    long size = l->kernel_h * l->kernel_w;
    float *there = columns, *back = backwards_at(l, columns).weight;
    memset(columns, 0, packed_of(l) * sizeof(float));
    for (long o = 0; o < l->out; o++)
        for (long c = 0; c < l->in; c++)
            for (long k = 0; k < size; k++) {
                float value = l->weight[(o * l->in + c) * size + k];
                there[((o / ROWS * l->in + c) * size + k) * ROWS + o % ROWS] = value;
                back[((c / ROWS * l->out + o) * size + size - 1 - k) * ROWS + c % ROWS] = value;
            }
}

/* v = W^T u */
static void adjoint(const Layer *l, const float *u, float *v, float *columns) {
    if (is_dense(l)) {
        dense_adjoint(inputs_of(l), outputs_of(l), columns, u, v);
        return;
    }
    if (is_flat(l)) {
        Flat f = backwards_at(l, columns);
        flat_apply(&f, u, v, columns + packed_of(l));
        return;
    }
    long depth = l->in * l->kernel_h * l->kernel_w, positions = l->out_h * l->out_w, together = rows_together(l);
    memset(v, 0, inputs_of(l) * sizeof(float));
    for (long first = 0; first < l->out_h; first += together) {
        long rows = lesser(together, l->out_h - first), size = rows * l->out_w;
        memset(columns, 0, depth * size * sizeof(float));
        add_product(depth, l->out, size, l->weight, 1, depth, u + first * l->out_w, positions, columns, size);
        scatter(l, columns, first, rows, v);
    }
}

/* u = W v */
static void apply(const Layer *l, float *v, float *u, float *columns) {
    if (is_dense(l)) {
        dense_apply(inputs_of(l), outputs_of(l), columns, v, u);
        return;
    }
    if (is_flat(l)) {
        Flat f = forwards(l, columns);
        flat_apply(&f, v, u, columns + packed_of(l));
        return;
    }
    long depth = l->in * l->kernel_h * l->kernel_w, positions = l->out_h * l->out_w, together = rows_together(l);
    memset(u, 0, outputs_of(l) * sizeof(float));
    for (long first = 0; first < l->out_h; first += together) {
        long rows = lesser(together, l->out_h - first), size = rows * l->out_w;
        gather(l, v, first, rows, columns);
        add_product(l->out, depth, size, l->weight, depth, 1, columns, size, u + first * l->out_w, positions);
    }
}

VECTORIZED static double inner(long n, const float *a, const float *b) {
    double sum = 0.0;
#pragma omp simd reduction(+ : sum)
    for (long i = 0; i < n; i++) sum += (double)a[i] * b[i];
    return sum;
}

VECTORIZED static void subtract(long n, float scale, const float *x, float *y) {
    for (long i = 0; i < n; i++) y[i] -= scale * x[i];
}

/* The largest eigenvalue of the symmetric n x n matrix t, which is destroyed, and its eigenvector, by Jacobi's rotations. */
static double leading(long n, double t[DIMENSIONS][DIMENSIONS], double *vector) {
    double turned[DIMENSIONS][DIMENSIONS] = {{0}};
    for (long i = 0; i < n; i++) turned[i][i] = 1.0;
    for (int sweep = 0; sweep < 12; sweep++)
        for (long p = 0; p < n; p++)
            for (long q = p + 1; q < n; q++) {
                if (fabs(t[p][q]) <= 1e-15 * sqrt(fabs(t[p][p] * t[q][q]))) continue;
                double angle = (t[q][q] - t[p][p]) / (2 * t[p][q]);
                double tangent = (angle < 0 ? -1 : 1) / (fabs(angle) + sqrt(angle * angle + 1));
                double c = 1 / sqrt(tangent * tangent + 1), s = tangent * c;
                for (long k = 0; k < n; k++) {
                    double left = t[k][p], right = t[k][q];
                    t[k][p] = c * left - s * right, t[k][q] = s * left + c * right;
                }
                for (long k = 0; k < n; k++) {
                    double left = t[p][k], right = t[q][k];
                    t[p][k] = c * left - s * right, t[q][k] = s * left + c * right;
                    left = turned[k][p], right = turned[k][q];
                    turned[k][p] = c * left - s * right, turned[k][q] = s * left + c * right;
                }
            }
    long best = 0;
    for (long i = 1; i < n; i++)
        if (t[i][i] > t[best][best]) best = i;
    for (long i = 0; i < n; i++) vector[i] = turned[i][best];
    return t[best][best];
}

/* Replace u by the best vector in the DIMENSIONS that powers of W W^T span from it: Lanczos's method, orthogonalized twice.
 * Return the residual |W W^T u - a u| as a share of the eigenvalue a. */
static double span(const Layer *l, float *columns, float *basis) {
    long n = outputs_of(l), found = 0;
    double t[DIMENSIONS][DIMENSIONS] = {{0}}, vector[DIMENSIONS], size = 0.0, rest = 0.0;
    make_unit(n, l->left);
    memcpy(basis, l->left, n * sizeof(float));
    for (long k = 0; k < DIMENSIONS; k++) {
        float *following = basis + (k + 1) * n;
        adjoint(l, basis + k * n, l->right, columns);
        apply(l, l->right, following, columns);
        found = k + 1;
        for (int again = 0; again < 2; again++)
            for (long j = 0; j <= k; j++) {
                double part = inner(n, basis + j * n, following);
                subtract(n, (float)part, basis + j * n, following);
                if (j == k) t[k][k] += part;
            }
        size = fmax(size, t[k][k]);
        rest = make_unit(n, following);
        if (k + 1 == DIMENSIONS || !(rest > 1e-6 * size)) break;
        t[k][k + 1] = t[k + 1][k] = rest;
    }
    double value = leading(found, t, vector);
    memset(l->left, 0, n * sizeof(float));
    for (long j = 0; j < found; j++) subtract(n, (float)-vector[j], basis + j * n, l->left);
    make_unit(n, l->left);
    return rest * fabs(vector[found - 1]) / fmax(value, FLT_MIN);
}

/* v = W^T u and u = W v, of unit length, from the best u that Lanczos's method finds, often in one space; then S = the gradient of <u, W v> in W. */
static void iterate(Layer *l) {
    long depth = l->in * l->kernel_h * l->kernel_w, positions = l->out_h * l->out_w;
    long together = rows_together(l);
    float *columns = l->scratch, *turned = columns + columns_of(l);
    if (is_dense(l)) write_out(l, columns);
    else if (is_flat(l)) pack(l, columns);
    for (int again = 0; again < SPACES && span(l, columns, turned) > SETTLED; again++);
    adjoint(l, l->left, l->right, columns);
    make_unit(inputs_of(l), l->right);
    apply(l, l->right, l->left, columns);
    make_unit(outputs_of(l), l->left);
    /* S = u columns^T: one of the two sides is turned, so that the rows of the second factor are contiguous */
    memset(l->slope, 0, l->out * depth * sizeof(float));
    if (positions < l->out) {
        for (long first = 0; first < l->out_h; first += together) {
            long rows = lesser(together, l->out_h - first), size = rows * l->out_w;
            gather(l, l->right, first, rows, columns);
            turn(depth, size, columns, turned);
            add_product(l->out, size, depth, l->left + first * l->out_w, positions, 1, turned, depth, l->slope, depth);
        }
    } else {
        float *left = turned, *slope = turned + l->out * positions;
        turn(l->out, positions, l->left, left);
        memset(slope, 0, l->out * depth * sizeof(float));
        for (long first = 0; first < l->out_h; first += together) {
            long rows = lesser(together, l->out_h - first), size = rows * l->out_w;
            gather(l, l->right, first, rows, columns);
            add_product(depth, size, l->out, columns, size, 1, left + first * l->out_w * l->out, l->out, slope, l->out);
        }
        turn(depth, l->out, slope, l->slope);
    }
}

/* How many floats of scratch a layer needs: columns or matrix, then the basis, or what S is made of. */
long lowcurve_power_room(const Layer *l) {
    long depth = l->in * l->kernel_h * l->kernel_w, positions = l->out_h * l->out_w, made = columns_of(l);
    long slope = positions < l->out ? depth * rows_together(l) * l->out_w : l->out * (positions + depth), basis = (DIMENSIONS + 1) * outputs_of(l);
    return made + (slope > basis ? slope : basis);
}

void lowcurve_power(long count, int threads, Layer *layers) {
#pragma omp parallel for num_threads(threads) schedule(dynamic) if (count > 1)
    for (long i = 0; i < count; i++) iterate(layers + i);
}

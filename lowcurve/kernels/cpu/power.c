/* Singular vectors of many convolutions at once by Lanczos's method, float32: one thread per layer, in that core's cache. A single
 * layer is iterated by a single thread. Optional like softplus.c.
 */
#include "map.h"

#include <float.h>
#include <math.h>
#include <omp.h>

#define DIMENSIONS 10 /* of the space in which singular vectors are looked for */
#define SETTLED 5e-3  /* residual, as a share of the eigenvalue, above which they are looked for once more, */
#define SPACES 4      /* in so many spaces at most */
#define STRETCH 1024  /* values whose products are summed in float32 */

/* A layer while it is iterated; vectors are as its map takes them. */
typedef struct {
    Map map;
    float *u, *image, *v, *basis, *slope;
} Work;

/* Where the parts of a layer's work are in its room; returns how many floats they need. */
static long lay_out(const Layer *l, float *room, Work *work) {
    long at = lay_out_map(l, room, &work->map), outputs = work->map.outputs;
    long sizes[] = {outputs, outputs, work->map.inputs, (DIMENSIONS + 1) * outputs, weights_of(l)};
    float **parts[] = {&work->u, &work->image, &work->v, &work->basis, &work->slope};
    for (int i = 0; i < 5; at += sizes[i++]) *parts[i] = room + at;
    return at;
}

VECTORIZED static float stretch_product(long n, const float *a, const float *b) {
    Wide sums[4] = {{0}};
    long i = 0;
    for (; i + 4 * WIDTH <= n; i += 4 * WIDTH)
        for (int k = 0; k < 4; k++) sums[k] += *(const Wide *)(a + i + k * WIDTH) * *(const Wide *)(b + i + k * WIDTH);
    for (; i < n; i += WIDTH) sums[0] += *(const Wide *)(a + i) * *(const Wide *)(b + i);
    Wide sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    float total = 0.0f;
    for (int k = 0; k < WIDTH; k++) total += sum[k];
    return total;
}

VECTORIZED static void add_stretch(long n, float scale, const float *x, float *y) {
    for (long i = 0; i < n; i++) y[i] += scale * x[i];
}

#define FOR_STRETCHES(n, at, size) for (long at = 0, size; at < n && (size = lesser(STRETCH, n - at)); at += STRETCH)

/* y += the sum of `count` vectors times these numbers */
static void combine(long n, long count, const double *numbers, const float *vectors, float *y) {
    FOR_STRETCHES(n, at, size)
        for (long j = 0; j < count; j++) add_stretch(size, (float)numbers[j], vectors + j * n + at, y + at);
}

/* Divide x by its length, which is returned. */
static double make_unit(long n, float *x) {
    double squares = 0.0;
    FOR_STRETCHES(n, at, size) squares += stretch_product(size, x + at, x + at);
    float norm = (float)sqrt(squares), scale = 1.0f / (norm < FLT_MIN ? FLT_MIN : norm);
    for (long i = 0; i < n; i++) x[i] *= scale;
    return sqrt(squares);
}

/* Take from y its parts in `count` unit vectors; returns that in the last one. */
static double remove_parts(long n, long count, const float *vectors, float *y) {
    double parts[DIMENSIONS] = {0};
    FOR_STRETCHES(n, at, size)
        for (long j = 0; j < count; j++) parts[j] -= stretch_product(size, vectors + j * n + at, y + at);
    combine(n, count, parts, vectors, y);
    return -parts[count - 1];
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

/* Replace u by the best vector in the DIMENSIONS that powers of W W^T span from it: Lanczos's method, orthogonalized twice. With it
 * comes image = W W^T u = a u + r, by the eigenvalue a and the last vector's part r in what the space does not contain. Return
 * |r| as a share of a. */
static double span(const Work *w) {
    long n = w->map.outputs, found = 0;
    double t[DIMENSIONS][DIMENSIONS] = {{0}}, vector[DIMENSIONS], size = 0.0, rest = 0.0;
    make_unit(n, w->u);
    memcpy(w->basis, w->u, n * sizeof(float));
    for (long k = 0; k < DIMENSIONS; k++) {
        float *following = w->basis + (k + 1) * n;
        adjoint(&w->map, w->basis + k * n, w->v);
        apply(&w->map, w->v, following);
        found = k + 1;
        for (int again = 0; again < 2; again++) t[k][k] += remove_parts(n, found, w->basis, following);
        size = fmax(size, t[k][k]);
        rest = make_unit(n, following);
        if (k + 1 == DIMENSIONS || !(rest > 1e-6 * size)) break;
        t[k][k + 1] = t[k + 1][k] = rest;
    }
    double value = leading(found, t, vector), beyond = rest * vector[found - 1];
    memset(w->u, 0, n * sizeof(float));
    memset(w->image, 0, n * sizeof(float));
    combine(n, found, vector, w->basis, w->u);
    make_unit(n, w->u);
    combine(n, 1, &value, w->u, w->image);
    combine(n, 1, &beyond, w->basis + found * n, w->image);
    return fabs(beyond) / fmax(value, FLT_MIN);
}

/* v = W^T u and u = W v, of unit length, from the best u that Lanczos's method finds, often in one space; then S = the gradient of
 * <u, W v> in W. */
static void iterate(const Layer *l, float *room) {
    Work w;
    lay_out(l, room, &w);
    prepare(&w.map);
    take_in(l, l->out, l->out_h * l->out_w, l->left, w.u);
    for (int again = 0; again < SPACES && span(&w) > SETTLED; again++);
    adjoint(&w.map, w.u, w.v);
    make_unit(w.map.inputs, w.v);
    make_unit(w.map.outputs, w.image);
    slope_of(&w.map, w.v, w.image, w.slope);
    give_back(l, l->out, l->out_h * l->out_w, w.image, l->left);
    give_back(l, l->in, l->height * l->width, w.v, l->right);
    give_slope(l, w.slope, l->slope);
}

/* How many floats of room a layer needs. */
long lowcurve_power_room(const Layer *l) {
    Work work;
    return lay_out(l, 0, &work);
}

/* `room` has `size` floats for each thread, as many as the largest layer needs. */
void lowcurve_power(long count, int threads, const Layer *layers, float *room, long size) {
#pragma omp parallel for num_threads(threads) schedule(dynamic) if (count > 1)
    for (long i = count - 1; i >= 0; i--) iterate(layers + i, room + omp_get_thread_num() * size);
}

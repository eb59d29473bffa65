/* Convolutions of stride 1 without columns: images get a border of zeros and are read as one long row, so that the values under
 * a kernel entry are neighbors in memory for neighboring outputs. Outputs at the right border are nonsense, and not copied. */
#include "loops.h"

#include <string.h>

#define ROWS 8   /* of a product that are computed at a time, in registers, */
#define WIDTH 16 /* and columns of it */

typedef float Wide __attribute__((vector_size(WIDTH * sizeof(float)), aligned(sizeof(float)), may_alias));

static inline long up_to(long n, long multiple) { return (n + multiple - 1) / multiple * multiple; }

/* From `in` images of in_h x in_w to `out` of out_h x out_w; `above` and `before` are the first rows and columns of the border.
 * `weight` is packed: ROWS outputs side by side for each kernel entry. */
typedef struct {
    long in, out, in_h, in_w, out_h, out_w, kernel_h, kernel_w, above, before;
    float *weight;
} Flat;

static inline long row_of(const Flat *f) { return f->out_w + f->kernel_w - 1; }
static inline long area_of(const Flat *f) { return (f->out_h + f->kernel_h - 1) * row_of(f); }
static inline long outputs_in_row(const Flat *f) { return up_to((f->out_h - 1) * row_of(f) + f->out_w, WIDTH); }

/* Floats: of the packed weight, and of an image with its border and the outputs. */
static inline long packed_size(const Flat *f) { return up_to(f->out, ROWS) * f->in * f->kernel_h * f->kernel_w; }
static inline long flat_room(const Flat *f) { return f->in * area_of(f) + 3 * WIDTH + up_to(f->out, ROWS) * outputs_in_row(f); }

/* ROWS outputs at `wide` times WIDTH positions. */
INLINE void flat_tile(const Flat *f, const float *weight, const float *x, float *y, long y_row, const int wide) {
    Wide sum[ROWS][2] = {{{0}}};
    for (long c = 0; c < f->in; c++, x += area_of(f))
        for (long i = 0; i < f->kernel_h; i++)
            for (long j = 0; j < f->kernel_w; j++, weight += ROWS)
                for (int w = 0; w < wide; w++) {
                    Wide values = *(const Wide *)(x + i * row_of(f) + j + w * WIDTH);
                    for (long r = 0; r < ROWS; r++) sum[r][w] += weight[r] * values;
                }
    for (long r = 0; r < ROWS; r++)
        for (int w = 0; w < wide; w++) *(Wide *)(y + r * y_row + w * WIDTH) = sum[r][w];
}

/* Thirty-two registers hold a tile of twice the width. */
static inline int has_many_registers(void) {
#if defined(__x86_64__) && defined(__GNUC__)
    return __builtin_cpu_supports("avx512f");
#else
    return 0;
#endif
}

VECTORIZED static void flat_product(const Flat *f, const float *x, float *y, int many) {
    long columns = outputs_in_row(f), depth = f->in * f->kernel_h * f->kernel_w;
    for (long o = 0; o < f->out; o += ROWS)
        for (long p = 0, step; p < columns; p += step) {
            step = many && columns - p >= 2 * WIDTH ? 2 * WIDTH : WIDTH;
            if (step > WIDTH) flat_tile(f, f->weight + o * depth, x + p, y + o * columns + p, columns, 2);
            else flat_tile(f, f->weight + o * depth, x + p, y + o * columns + p, columns, 1);
        }
}

/* y = f(x), in the room that flat_room says */
static void flat_apply(const Flat *f, const float *x, float *y, float *room) {
    long row = row_of(f), columns = outputs_in_row(f), shift = f->before < 0 ? -f->before : 0;
    float *bordered = room, *found = room + f->in * area_of(f) + 3 * WIDTH;
    memset(bordered, 0, (f->in * area_of(f) + 3 * WIDTH) * sizeof(float));
    for (long c = 0; c < f->in; c++)
        for (long h = 0; h < f->in_h; h++) {
            long to = h + f->above, size = lesser(f->in_w - shift, row - f->before - shift);
            if (to < 0 || to >= f->out_h + f->kernel_h - 1 || size <= 0) continue;
            memcpy(bordered + c * area_of(f) + to * row + f->before + shift, x + (c * f->in_h + h) * f->in_w + shift,
                   size * sizeof(float));
        }
    flat_product(f, bordered, found, has_many_registers());
    for (long o = 0; o < f->out; o++)
        for (long h = 0; h < f->out_h; h++)
            memcpy(y + (o * f->out_h + h) * f->out_w, found + o * columns + h * row, f->out_w * sizeof(float));
}

/* Convolutions of one image without columns: channels lie side by side, so that the pixel under a kernel entry is one address for
 * any stride and border, and registers hold the channels of a few outputs.
 *
 * Channels of outputs are filled up with zeros to a multiple of WIDTH; weights are packed in blocks of BESIDE of them.
 */
#include "loops.h"

#include <string.h>

#define WIDTH 16            /* values in a vector */
#define BESIDE (2 * WIDTH)  /* channels of outputs whose weights are neighbors */
#define TOGETHER 8          /* outputs, or channels of inputs, that are computed at a time */

typedef float Wide __attribute__((vector_size(WIDTH * sizeof(float)), aligned(sizeof(float)), may_alias));

static inline long filled(long channels) { return (channels + WIDTH - 1) / WIDTH * WIDTH; }

/* Outputs at rows x columns positions. Each is the sum over kernel entries of weight[entry] times the pixel at offset[entry] from
 * its own, which has `in` channels. `out` channels are filled up. Steps are from one position to the next, in floats. */
typedef struct {
    long rows, columns, in, out, from_row, from_column, to_row, to_column, entries;
    const long *offset;
    const float *weight; /* for each block of outputs entries x in x its channels */
} Grid;

/* TOGETHER outputs whose pixels and places are given, `wide` vectors of them; rows of weights are `block` apart. */
INLINE void grid_tile(const Grid *g, const float *const *from, const float *weight, long block, float *const *to, const int wide) {
    Wide sum[TOGETHER][2] = {{{0}}};
    for (long e = 0; e < g->entries; e++)
        for (long c = g->offset[e]; c < g->offset[e] + g->in; c++, weight += block)
            for (int w = 0; w < wide; w++) {
                Wide row = *(const Wide *)(weight + w * WIDTH);
                for (long p = 0; p < TOGETHER; p++) sum[p][w] += from[p][c] * row;
            }
    for (long p = 0; p < TOGETHER; p++)
        for (int w = 0; w < wide; w++) *(Wide *)(to[p] + w * WIDTH) = sum[p][w];
}

/* Thirty-two registers hold a tile of two vectors. */
static inline int has_many_registers(void) {
#if defined(__x86_64__) && defined(__GNUC__)
    return __builtin_cpu_supports("avx512f");
#else
    return 0;
#endif
}

/* All outputs; where positions are left over, the last one is computed several times. */
VECTORIZED static void grid_product(const Grid *g, const float *from, float *to, int many) {
    long positions = g->rows * g->columns;
    for (long o = 0, block; o < g->out; o += block) {
        const float *weight = g->weight + o * g->entries * g->in;
        block = lesser(BESIDE, g->out - o);
        for (long first = 0; first < positions; first += TOGETHER) {
            const float *pixels[TOGETHER];
            float *places[TOGETHER];
            for (long p = 0; p < TOGETHER; p++) {
                long position = lesser(first + p, positions - 1), row = position / g->columns, column = position % g->columns;
                pixels[p] = from + row * g->from_row + column * g->from_column;
                places[p] = to + row * g->to_row + column * g->to_column + o;
            }
            if (many && block == BESIDE) {
                grid_tile(g, pixels, weight, block, places, 2);
                continue;
            }
            for (long w = 0; w < block; w += WIDTH) {
                float *own[TOGETHER];
                for (long p = 0; p < TOGETHER; p++) own[p] = places[p] + w;
                grid_tile(g, pixels, weight + w, block, own, 1);
            }
        }
    }
}

/* The gradient of <to, outputs> in the weights: entries x filled in x out, as sums over positions. */
INLINE void slope_tile(const Grid *g, const float *from, const float *to, float *found, const int wide) {
    Wide sum[TOGETHER][2] = {{{0}}};
    for (long r = 0; r < g->rows; r++)
        for (long q = 0; q < g->columns; q++) {
            const float *pixel = from + r * g->from_row + q * g->from_column, *place = to + r * g->to_row + q * g->to_column;
            for (int w = 0; w < wide; w++) {
                Wide row = *(const Wide *)(place + w * WIDTH);
                for (long c = 0; c < TOGETHER; c++) sum[c][w] += pixel[c] * row;
            }
        }
    for (long c = 0; c < TOGETHER; c++)
        for (int w = 0; w < wide; w++) *(Wide *)(found + c * g->out + w * WIDTH) = sum[c][w];
}

VECTORIZED static void grid_slope(const Grid *g, const float *from, const float *to, float *found, int many) {
    for (long e = 0; e < g->entries; e++)
        for (long c = 0; c < filled(g->in); c += TOGETHER)
            for (long o = 0, step; c < g->in && o < g->out; o += step) {
                float *own = found + (e * filled(g->in) + c) * g->out + o;
                step = many ? lesser(BESIDE, g->out - o) : WIDTH;
                if (step == BESIDE) slope_tile(g, from + g->offset[e] + c, to + o, own, 2);
                else slope_tile(g, from + g->offset[e] + c, to + o, own, 1);
            }
}

/* An image with a border: its first pixel is at (above, before), which is never negative, of rows x columns; what does not fit in is
 * left out. */
typedef struct {
    long above, before, rows, columns;
} Border;

/* Copy an image of height x width pixels of `size` floats. */
static void write_inside(long height, long width, long size, const float *x, Border border, float *bordered) {
    long count = lesser(width, border.columns - border.before);
    for (long h = 0; count > 0 && h < lesser(height, border.rows - border.above); h++)
        memcpy(bordered + ((h + border.above) * border.columns + border.before) * size, x + h * width * size,
               count * size * sizeof(float));
}

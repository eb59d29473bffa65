/* A convolution of one image as a map, its transpose and its gradient, by the products of grid.h. */
#include "grid.h"

#include <stdint.h>

/* Tensors are row-major, or, mixed, have channels last. */
typedef struct {
    const float *weight;         /* out x in x kernel_h x kernel_w */
    float *left, *right, *slope; /* u: out x out_h x out_w; v: in x height x width; S: like weight */
    long in, out, height, width, out_h, out_w, kernel_h, kernel_w, stride_h, stride_w, above, before, mixed;
} Layer;

/* What is made of a layer's weight, and room. Images have channels last, filled up. */
typedef struct {
    const Layer *layer;
    Border of_inputs, of_outputs;
    long inputs, outputs;        /* floats of an image that the map takes, and of one that it gives */
    float *there, *back;         /* the map's packed weight, and that of its transpose, class by class */
    float *seen, *seen_outputs;  /* an image with its border, 0, and one of outputs */
    long *offsets, *places;      /* of pixels under kernel entries, and of these in the weight: the map's, then the transpose's */
} Map;

static inline long larger(long a, long b) { return a > b ? a : b; }
static inline long entries_of(const Layer *l) { return l->kernel_h * l->kernel_w; }
static inline long weights_of(const Layer *l) { return entries_of(l) * filled(l->in) * filled(l->out); }

static Border border_of_inputs(const Layer *l) {
    return (Border){l->above, l->before, (l->out_h - 1) * l->stride_h + l->kernel_h, (l->out_w - 1) * l->stride_w + l->kernel_w};
}

/* Row h of the image is seen by the outputs' rows (h + above - i) / stride, for those i of the kernel that leave no remainder. Some of
 * them are before the first row, some behind the last. */
static Border border_of_outputs(const Layer *l) {
    long above = larger(0, (l->kernel_h - 1 - l->above + l->stride_h - 1) / l->stride_h);
    long before = larger(0, (l->kernel_w - 1 - l->before + l->stride_w - 1) / l->stride_w);
    return (Border){above, before, above + larger(l->out_h, (l->height - 1 + l->above) / l->stride_h + 1),
                    before + larger(l->out_w, (l->width - 1 + l->before) / l->stride_w + 1)};
}

/* Where the parts of a map are in its room; returns how many floats they need. */
static long lay_out_map(const Layer *l, float *room, Map *map) {
    Border x = border_of_inputs(l), y = border_of_outputs(l);
    *map = (Map){.layer = l, .of_inputs = x, .of_outputs = y};
    map->inputs = l->height * l->width * filled(l->in), map->outputs = l->out_h * l->out_w * filled(l->out);
    long sizes[] = {weights_of(l), weights_of(l), x.rows * x.columns * filled(l->in), y.rows * y.columns * filled(l->out)}, at = 0;
    float **parts[] = {&map->there, &map->back, &map->seen, &map->seen_outputs};
    for (int i = 0; i < 4; at += sizes[i++]) *parts[i] = room + at;
    map->offsets = (long *)(room + at), map->places = map->offsets + 2 * entries_of(l);
    return at + filled(8 * entries_of(l));
}

/* For each block of outputs its entries x in x channels, from a weight whose outputs and inputs are so far apart; divided by `by`. */
VECTORIZED static void pack(const float *weight, float by, long outs, long out_step, long ins, long in_step, long entries,
                            const long *places, float *packed) {
    for (long first = 0, block; first < filled(outs); first += block, packed += entries * ins * block) {
        block = lesser(BESIDE, filled(outs) - first);
        long present = lesser(block, outs - first);
        for (long c = 0; c < ins; c++)
            for (long e = 0; e < entries; e++) {
                const float *from = weight + first * out_step + c * in_step + places[e];
                float *to = packed + (e * ins + c) * block;
                for (long k = 0; k < present; k++) to[k] = from[k * out_step] / by;
                for (long k = present; k < block; k++) to[k] = 0.0f;
            }
    }
}

/* By the bits without sign, which are in the order of the numbers, and NaN above all. */
VECTORIZED static float largest(long n, const float *x) {
    int32_t found = 0;
    for (long i = 0; i < n; i++) {
        int32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        bits &= 0x7fffffff;
        found = bits > found ? bits : found;
    }
    float value;
    memcpy(&value, &found, sizeof value);
    return value;
}

/* Kernel entries that see pixels of class (a, b), of which rows and columns leave these remainders: their offsets and places are
 * written, their number is returned. */
static long entries_of_class(const Map *map, long a, long b, long *offsets, long *places) {
    const Layer *l = map->layer;
    long found = 0, step = l->mixed ? l->in : 1;
    for (long i = 0; i < l->kernel_h; i++)
        for (long j = 0; j < l->kernel_w; j++) {
            long h = a + l->above - i, k = b + l->before - j;
            if (h % l->stride_h || k % l->stride_w) continue;
            long row = h / l->stride_h + map->of_outputs.above, column = k / l->stride_w + map->of_outputs.before;
            offsets[found] = (row * map->of_outputs.columns + column) * filled(l->out);
            places[found++] = (i * l->kernel_w + j) * step;
        }
    return found;
}

#define FOR_CLASSES(l, a, b)                                                                                                   \
    for (long a = 0; a < l->stride_h; a++)                                                                                     \
        for (long b = 0; b < l->stride_w; b++)

/* Find offsets and pack the weight, divided by its largest entry: no square is then beyond what a float holds. */
static void prepare(const Map *map) {
    const Layer *l = map->layer;
    long entries = entries_of(l), out_step = l->in * entries, in_step = l->mixed ? 1 : entries, done = entries;
    float most = largest(l->out * out_step, l->weight), by = most > 0 ? most : 1.0f;
    for (long e = 0; e < entries; e++) {
        map->offsets[e] = (e / l->kernel_w * map->of_inputs.columns + e % l->kernel_w) * filled(l->in);
        map->places[e] = e * (l->mixed ? l->in : 1);
    }
    memset(map->seen, 0, (map->seen_outputs - map->seen) * sizeof(float));
    memset(map->seen_outputs, 0, map->of_outputs.rows * map->of_outputs.columns * filled(l->out) * sizeof(float));
    pack(l->weight, by, l->out, out_step, l->in, in_step, entries, map->places, map->there);
    FOR_CLASSES(l, a, b) {
        long own = entries_of_class(map, a, b, map->offsets + done, map->places + done);
        float *back = map->back + (done - entries) * l->out * filled(l->in);
        pack(l->weight, by, l->in, in_step, l->out, out_step, own, map->places + done, back);
        done += own;
    }
}

static Grid forwards(const Map *map) {
    const Layer *l = map->layer;
    long pixel = filled(l->in), out = filled(l->out);
    return (Grid){l->out_h, l->out_w, l->in, out, l->stride_h * map->of_inputs.columns * pixel, l->stride_w * pixel,
                  l->out_w * out, out, entries_of(l), map->offsets, map->there};
}

/* Write an image into that with a border. */
static void see(const Map *map, const float *x) {
    write_inside(map->layer->height, map->layer->width, filled(map->layer->in), x, map->of_inputs, map->seen);
}

/* y = W x */
static void apply(const Map *map, const float *x, float *y) {
    Grid grid = forwards(map);
    see(map, x);
    grid_product(&grid, map->seen, y, has_many_registers());
}

/* The gradient of <y, W x> in W, in the order of grid_slope. */
static void slope_of(const Map *map, const float *x, const float *y, float *slope) {
    Grid grid = forwards(map);
    see(map, x);
    grid_slope(&grid, map->seen, y, slope, has_many_registers());
}

/* How many of the numbers below `kernel` leave the same remainder as `at`. */
static long count_alike(long at, long kernel, long stride) {
    long first = at % stride;
    return first < kernel ? (kernel - 1 - first) / stride + 1 : 0;
}

/* x = W^T y: one product for each class of pixels, which the same kernel entries see */
static void adjoint(const Map *map, const float *y, float *x) {
    const Layer *l = map->layer;
    Border border = map->of_outputs;
    long in = filled(l->in), pixel = filled(l->out), done = entries_of(l);
    write_inside(l->out_h, l->out_w, pixel, y, border, map->seen_outputs);
    FOR_CLASSES(l, a, b) {
        long rows = larger(0, l->height - a + l->stride_h - 1) / l->stride_h;
        long columns = larger(0, l->width - b + l->stride_w - 1) / l->stride_w;
        long own = count_alike(a + l->above, l->kernel_h, l->stride_h) * count_alike(b + l->before, l->kernel_w, l->stride_w);
        Grid grid = {rows, columns, l->out, in, border.columns * pixel, pixel, l->stride_h * l->width * in, l->stride_w * in,
                     own, map->offsets + done, map->back + (done - entries_of(l)) * l->out * in};
        grid_product(&grid, map->seen_outputs, x + (a * l->width + b) * in, has_many_registers());
        done += own;
    }
}

/* Between channels that lie as in a tensor and those side by side, filled up. */
static void take_in(const Layer *l, long channels, long positions, const float *from, float *to) {
    memset(to, 0, positions * filled(channels) * sizeof(float));
    for (long p = 0; p < positions; p++)
        for (long c = 0; c < channels; c++) to[p * filled(channels) + c] = from[l->mixed ? p * channels + c : c * positions + p];
}

static void give_back(const Layer *l, long channels, long positions, const float *from, float *to) {
    for (long c = 0; c < channels; c++)
        for (long p = 0; p < positions; p++) to[l->mixed ? p * channels + c : c * positions + p] = from[p * filled(channels) + c];
}

static void give_slope(const Layer *l, const float *from, float *to) {
    long entries = entries_of(l), in_step = l->mixed ? 1 : entries, step = l->mixed ? l->in : 1;
    for (long first = 0; first < l->out; first += WIDTH)
        for (long c = 0; c < l->in; c++)
            for (long e = 0; e < entries; e++)
                for (long o = first; o < lesser(first + WIDTH, l->out); o++)
                    to[o * l->in * entries + c * in_step + e * step] = from[(e * filled(l->in) + c) * filled(l->out) + o];
}

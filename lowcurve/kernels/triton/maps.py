"""A convolution and its transpose for all layers of a network at once on GPUs: three products, in tiles.

A layer's numbers stand in a row of a table; `_number` reads one. A program has a tile of one layer's result, which is a
matrix: outputs or inputs (channels by positions) or the weight (output channels by what one output sees).
"""

import triton
import triton.language as tl

IN, OUT, HEIGHT, WIDTH, OUT_H, OUT_W, KERNEL_H, KERNEL_W, STRIDE_H, STRIDE_W, ABOVE, BEFORE, DILATION_H, DILATION_W = (
    tl.constexpr(i) for i in range(14)
)
NUMBERS = tl.constexpr(14)


@triton.jit
def layer_number(table, layer, which: tl.constexpr):
    """Return one number of a layer."""
    return tl.load(table + layer * NUMBERS + which)


@triton.jit
def applied(table, layer, weight, v, o, p, T: tl.constexpr):
    """(W v)[o, p] for output channels o and positions p."""
    kh = layer_number(table, layer, KERNEL_H)
    kw = layer_number(table, layer, KERNEL_W)
    height = layer_number(table, layer, HEIGHT)
    width = layer_number(table, layer, WIDTH)
    out_w = layer_number(table, layer, OUT_W)
    depth = layer_number(table, layer, IN) * kh * kw
    rows = (o < layer_number(table, layer, OUT))[:, None]
    columns = (p < layer_number(table, layer, OUT_H) * out_w)[None, :]
    top = (p // out_w) * layer_number(table, layer, STRIDE_H) - layer_number(table, layer, ABOVE)
    left = (p % out_w) * layer_number(table, layer, STRIDE_W) - layer_number(table, layer, BEFORE)
    total = tl.zeros([T, T], tl.float32)
    for start in range(0, depth, T):
        k = start + tl.arange(0, T)
        seen = k < depth
        a = tl.load(weight + o[:, None] * depth + k[None, :], rows & seen[None, :], 0.0)
        h = top[None, :] + ((k // kw) % kh * layer_number(table, layer, DILATION_H))[:, None]
        w = left[None, :] + (k % kw * layer_number(table, layer, DILATION_W))[:, None]
        there = (h >= 0) & (h < height) & (w >= 0) & (w < width) & seen[:, None] & columns
        b = tl.load(v + ((k // (kh * kw))[:, None] * height + h) * width + w, there, 0.0)
        total += tl.dot(a, b, input_precision="ieee")
    return total


@triton.jit
def transposed(table, layer, weight, u, c, q, T: tl.constexpr):
    """(Wᵀ u)[c, q] for input channels c and positions q."""
    kh = layer_number(table, layer, KERNEL_H)
    kw = layer_number(table, layer, KERNEL_W)
    width = layer_number(table, layer, WIDTH)
    out_h = layer_number(table, layer, OUT_H)
    out_w = layer_number(table, layer, OUT_W)
    channels = layer_number(table, layer, IN)
    stride_h = layer_number(table, layer, STRIDE_H)
    stride_w = layer_number(table, layer, STRIDE_W)
    depth = layer_number(table, layer, OUT) * kh * kw
    rows = (c < channels)[:, None]
    columns = (q < layer_number(table, layer, HEIGHT) * width)[None, :]
    top = q // width + layer_number(table, layer, ABOVE)
    left = q % width + layer_number(table, layer, BEFORE)
    total = tl.zeros([T, T], tl.float32)
    for start in range(0, depth, T):
        k = start + tl.arange(0, T)
        seen = k < depth
        o = k // (kh * kw)
        at = (o[None, :] * channels + c[:, None]) * (kh * kw) + (k % (kh * kw))[None, :]
        a = tl.load(weight + at, rows & seen[None, :], 0.0)
        h = top[None, :] - ((k // kw) % kh * layer_number(table, layer, DILATION_H))[:, None]
        w = left[None, :] - (k % kw * layer_number(table, layer, DILATION_W))[:, None]
        there = (h >= 0) & (h % stride_h == 0) & (h // stride_h < out_h) & seen[:, None] & columns
        there = there & (w >= 0) & (w % stride_w == 0) & (w // stride_w < out_w)
        b = tl.load(u + (o[:, None] * out_h + h // stride_h) * out_w + w // stride_w, there, 0.0)
        total += tl.dot(a, b, input_precision="ieee")
    return total


@triton.jit
def outer(table, layer, u, v, o, k, T: tl.constexpr):
    """(∂⟨u, W v⟩/∂W)[o, k] for output channels o and k = (c, i, j) counted in one."""
    kh = layer_number(table, layer, KERNEL_H)
    kw = layer_number(table, layer, KERNEL_W)
    height = layer_number(table, layer, HEIGHT)
    width = layer_number(table, layer, WIDTH)
    out_w = layer_number(table, layer, OUT_W)
    positions = layer_number(table, layer, OUT_H) * out_w
    rows = (o < layer_number(table, layer, OUT))[:, None]
    columns = (k < layer_number(table, layer, IN) * kh * kw)[None, :]
    total = tl.zeros([T, T], tl.float32)
    for start in range(0, positions, T):
        p = start + tl.arange(0, T)
        seen = p < positions
        a = tl.load(u + o[:, None] * positions + p[None, :], rows & seen[None, :], 0.0)
        h = ((p // out_w) * layer_number(table, layer, STRIDE_H) - layer_number(table, layer, ABOVE))[:, None]
        w = ((p % out_w) * layer_number(table, layer, STRIDE_W) - layer_number(table, layer, BEFORE))[:, None]
        h += ((k // kw) % kh * layer_number(table, layer, DILATION_H))[None, :]
        w += (k % kw * layer_number(table, layer, DILATION_W))[None, :]
        there = (h >= 0) & (h < height) & (w >= 0) & (w < width) & seen[:, None] & columns
        b = tl.load(v + ((k // (kh * kw))[None, :] * height + h) * width + w, there, 0.0)
        total += tl.dot(a, b, input_precision="ieee")
    return total

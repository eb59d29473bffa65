"""The steps of `linalg/bidiagonal.py` on GPUs: one launch each for all layers of a network.

Vectors of all layers lie one after the other, in tiles of T x T numbers, the last ones filled up with 0: `first` has
where a layer's begin, `tiles` the (layer, row, column) of each tile. Lengths are not divided by when a vector is
written but when it is read: a tile writes the sum of its squares, and who reads adds up those of the layer.
"""

import triton
import triton.language as tl

from lowcurve.kernels.triton.maps import (
    HEIGHT,
    IN,
    KERNEL_H,
    KERNEL_W,
    OUT,
    OUT_H,
    OUT_W,
    WIDTH,
    applied,
    layer_number,
    outer,
    transposed,
)

LEAST = tl.constexpr(1e-6)  # relative to the first α; what is shorter is rounding and counts as nothing


@triton.jit
def _place(tiles, T: tl.constexpr):
    """Return this program's layer, and the rows and columns of its tile."""
    layer = tl.load(tiles + 3 * tl.program_id(0))
    row = tl.load(tiles + 3 * tl.program_id(0) + 1)
    column = tl.load(tiles + 3 * tl.program_id(0) + 2)
    return layer, row * T + tl.arange(0, T), column * T + tl.arange(0, T)


@triton.jit
def _length(squares, first_tile, layer, MOST: tl.constexpr):
    """Return a vector's length from the sums of squares of its layer's tiles, of which there are at most MOST."""
    at = tl.load(first_tile + layer) + tl.arange(0, MOST)
    return tl.sqrt(tl.sum(tl.load(squares + at, at < tl.load(first_tile + layer + 1), 0.0)))


@triton.jit
def _inverse(length, least):
    """1 / length, or 0 for a length that counts as 0."""
    return tl.where(length > least, 1.0 / tl.where(length > least, length, 1.0), 0.0)


@triton.jit
def _spots(table, layer, rows, columns, ROWS: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr):
    """Return where a tile of a layer's inputs or outputs lies from their first number on, and what of it exists."""
    positions = layer_number(table, layer, HIGH) * layer_number(table, layer, WIDE)
    inside = (rows < layer_number(table, layer, ROWS))[:, None] & (columns < positions)[None, :]
    return rows[:, None] * positions + columns[None, :], inside


@triton.jit
def _earlier(length, least, before, at, inside, squares_before, first_tile, layer, MOST: tl.constexpr):
    """length before / |before|, what a vector loses to the one before the last; 0 for a length that counts as 0."""
    factor = tl.where(length > least, length, 0.0)
    factor *= _inverse(_length(squares_before, first_tile, layer, MOST), least)
    return factor * tl.load(before + at, inside, 0.0)


@triton.jit
def _float32(table, layer):
    """Return the address in a table as one of numbers."""
    return tl.load(table + layer).to(tl.pointer_type(tl.float32))


@triton.jit
def largest_kernel(weights, of, offset, size, partial, BLOCK: tl.constexpr):
    """partial = max |w| of each block of each layer."""
    block = tl.program_id(0)
    layer = tl.load(of + block)
    at = tl.load(offset + block) + tl.arange(0, BLOCK)
    tl.store(partial + block, tl.max(tl.abs(tl.load(_float32(weights, layer) + at, at < tl.load(size + layer), 0.0))))


@triton.jit
def _scale(partial, first_block, layer, BLOCKS: tl.constexpr):
    """1 / max |w|, so that squares are numbers; 1 for a weight of 0."""
    at = tl.load(first_block + layer) + tl.arange(0, BLOCKS)
    largest = tl.max(tl.load(partial + at, at < tl.load(first_block + layer + 1), 0.0))
    return 1.0 / tl.where(largest > 0.0, largest, 1.0)


@triton.jit
def start_kernel(left, grain, u, squares, tiles, table, first, T: tl.constexpr):
    """u = left + grain, of each layer."""
    layer, o, p = _place(tiles, T)
    at, inside = _spots(table, layer, o, p, OUT, OUT_H, OUT_W)
    begin = tl.load(first + layer)
    value = tl.load(_float32(left, layer) + at, inside, 0.0) + tl.load(grain + begin + at, inside, 0.0)
    tl.store(u + begin + at, value, inside)
    tl.store(squares + tl.program_id(0), tl.sum(value * value))


@triton.jit
def transposed_kernel(
    weights, u, v, before, squares_u, squares_v, squares_before, squares_first, partial,
    tiles, table, first_in, first_out, first_tile_in, first_tile_out, first_block,
    FOLLOWS: tl.constexpr, T: tl.constexpr, MOST: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """v = Wᵀ u / |u| and, where it follows another, - |u| before / |before|."""
    layer, c, q = _place(tiles, T)
    least = 0.0
    if FOLLOWS:
        least = LEAST * _length(squares_first, first_tile_in, layer, MOST)
    beta = _length(squares_u, first_tile_out, layer, MOST)
    scale = _inverse(beta, least) * _scale(partial, first_block, layer, BLOCKS)
    value = transposed(table, layer, _float32(weights, layer), u + tl.load(first_out + layer), c, q, T) * scale
    at, inside = _spots(table, layer, c, q, IN, HEIGHT, WIDTH)
    at += tl.load(first_in + layer)
    if FOLLOWS:
        value -= _earlier(beta, least, before, at, inside, squares_before, first_tile_in, layer, MOST)
    tl.store(v + at, value, inside)
    tl.store(squares_v + tl.program_id(0), tl.sum(tl.where(inside, value * value, 0.0)))


@triton.jit
def applied_kernel(
    weights, v, u, before, squares_v, squares_u, squares_before, squares_first, partial,
    tiles, table, first_in, first_out, first_tile_in, first_tile_out, first_block,
    FOLLOWS: tl.constexpr, T: tl.constexpr, MOST: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """u = W v / |v| and, where it follows another, - |v| before / |before|."""
    layer, o, p = _place(tiles, T)
    least = 0.0
    if FOLLOWS:
        least = LEAST * _length(squares_first, first_tile_in, layer, MOST)
    alpha = _length(squares_v, first_tile_in, layer, MOST)
    scale = _inverse(alpha, least) * _scale(partial, first_block, layer, BLOCKS)
    value = applied(table, layer, _float32(weights, layer), v + tl.load(first_in + layer), o, p, T) * scale
    at, inside = _spots(table, layer, o, p, OUT, OUT_H, OUT_W)
    at += tl.load(first_out + layer)
    if FOLLOWS:
        value -= _earlier(alpha, least, before, at, inside, squares_before, first_tile_out, layer, MOST)
    tl.store(u + at, value, inside)
    tl.store(squares_u + tl.program_id(0), tl.sum(tl.where(inside, value * value, 0.0)))


@triton.jit
def ritz_kernel(
    squares_u, squares_v, factors, count_u, count_v, first_tile_in, first_tile_out,
    STEPS: tl.constexpr, SIZE: tl.constexpr, MOST: tl.constexpr, SQUARINGS: tl.constexpr,
):  # fmt: skip
    """factors = pₖ / |uₖ| for the first left singular vector p of each layer's bidiagonal matrix."""
    layer = tl.program_id(0)
    i = tl.arange(0, SIZE)
    diagonal = i[:, None] == i[None, :]
    gram = tl.zeros([SIZE, SIZE], tl.float32)
    inverse = tl.zeros([SIZE], tl.float32)
    least = LEAST * _length(squares_v, first_tile_in, layer, MOST)
    alpha_before = 0.0
    for k in range(STEPS):
        beta = _length(squares_u + k * count_u, first_tile_out, layer, MOST)
        inverse = tl.where(i == k, _inverse(beta, tl.where(k == 0, 0.0, least)), inverse)
        beta = tl.where((k == 0) | (beta <= least), 0.0, beta)
        alpha = _length(squares_v + k * count_v, first_tile_in, layer, MOST)
        alpha = tl.where(alpha <= least, 0.0, alpha)
        gram += tl.where(diagonal & (i == k)[None, :], alpha * alpha + beta * beta, 0.0)
        beside = ((i == k)[:, None] & (i == k - 1)[None, :]) | ((i == k - 1)[:, None] & (i == k)[None, :])
        gram += tl.where(beside, beta * alpha_before, 0.0)
        alpha_before = alpha
    for _ in range(SQUARINGS):
        trace = tl.sum(tl.where(diagonal, gram, 0.0))
        gram = gram / tl.where(trace > 0.0, trace, 1.0)
        gram = tl.dot(gram, gram, input_precision="ieee")
    sizes = tl.sum(tl.where(diagonal, gram, 0.0), axis=1)
    best = tl.argmax(sizes, axis=0)
    p = tl.sum(tl.where((i == best)[None, :], gram, 0.0), axis=1)
    length = tl.sqrt(tl.sum(p * p))
    tl.store(factors + layer * SIZE + i, p * inverse / tl.where(length > 0.0, length, 1.0))


@triton.jit
def combined_kernel(
    basis, factors, u, squares, tiles, table, first, total, STEPS: tl.constexpr, SIZE: tl.constexpr, T: tl.constexpr
):
    """u = Σ factorₖ uₖ of each layer."""
    layer, o, p = _place(tiles, T)
    at, inside = _spots(table, layer, o, p, OUT, OUT_H, OUT_W)
    at += tl.load(first + layer)
    value = tl.zeros([T, T], tl.float32)
    for k in range(STEPS):
        value += tl.load(factors + layer * SIZE + k) * tl.load(basis + k * total + at, inside, 0.0)
    tl.store(u + at, value, inside)
    tl.store(squares + tl.program_id(0), tl.sum(value * value))


@triton.jit
def outer_kernel(
    u, v, left, right, slopes, squares_u, squares_v, tiles, table, first_in, first_out, first_tile_in, first_tile_out,
    T: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    """S = ∂⟨u, W v⟩/∂W for unit vectors; a layer's tiles of S write their shares of these to left and right."""
    layer, o, k = _place(tiles, T)
    mine_u = u + tl.load(first_out + layer)
    mine_v = v + tl.load(first_in + layer)
    scale_u = _inverse(_length(squares_u, first_tile_out, layer, MOST), 0.0)
    scale_v = _inverse(_length(squares_v, first_tile_in, layer, MOST), 0.0)
    value = outer(table, layer, mine_u, mine_v, o, k, T) * (scale_u * scale_v)
    depth = layer_number(table, layer, IN) * layer_number(table, layer, KERNEL_H) * layer_number(table, layer, KERNEL_W)
    inside = (o < layer_number(table, layer, OUT))[:, None] & (k < depth)[None, :]
    tl.store(_float32(slopes, layer) + o[:, None] * depth + k[None, :], value, inside)
    row = tl.load(tiles + 3 * tl.program_id(0) + 1)
    column = tl.load(tiles + 3 * tl.program_id(0) + 2)
    across = tl.cdiv(depth, T)
    share = row * across + column
    step = tl.cdiv(layer_number(table, layer, OUT), T) * across * T
    size_u = layer_number(table, layer, OUT) * layer_number(table, layer, OUT_H) * layer_number(table, layer, OUT_W)
    for start in range(share * T, size_u, step):
        at = start + tl.arange(0, T)
        tl.store(_float32(left, layer) + at, scale_u * tl.load(mine_u + at, at < size_u, 0.0), at < size_u)
    size_v = layer_number(table, layer, IN) * layer_number(table, layer, HEIGHT) * layer_number(table, layer, WIDTH)
    for start in range(share * T, size_v, step):
        at = start + tl.arange(0, T)
        tl.store(_float32(right, layer) + at, scale_v * tl.load(mine_v + at, at < size_v, 0.0), at < size_v)

"""What do the kernels of batch norm share? Tiles of a tensor, sums over its parts, numbers of its channels.

A tensor is (N, C, L) in any order of memory: a program has a tile of positions p = n L + l and channels c. Sums over
channels are made in parts that no atomic operation joins, so that results do not change from call to call.
"""

import triton
import triton.language as tl


@triton.jit
def tile(p, c, positions, channels, length, stride_n, stride_c, stride_l):
    """Return the addresses of a tile relative to a tensor's first value, and which of them exist."""
    at = (p // length).to(tl.int64) * stride_n + (p % length).to(tl.int64) * stride_l
    return at[:, None] + c[None, :].to(tl.int64) * stride_c, (p < positions)[:, None] & (c < channels)[None, :]


@triton.jit
def mine(per_part, positions, C: tl.constexpr):
    """Return this program's channels, its part, and where the part's positions begin and end."""
    part = tl.program_id(1)
    first = part * per_part
    return tl.program_id(0) * C + tl.arange(0, C), part, first, tl.minimum(first + per_part, positions)


@triton.jit
def loaded(tensor, at, inside):
    """Return a tile in float32, 0 where nothing is."""
    return tl.load(tensor + at, inside, 0.0).to(tl.float32)


@triton.jit
def store(tensor, at, value, inside):
    """Write a tile in the tensor's own type."""
    tl.store(tensor + at, value.to(tensor.dtype.element_ty), inside)


@triton.jit
def store_sum(sums, kind, part, c, channels, value, PARTS: tl.constexpr):
    """Write a part of one kind of sum, for channels c; `whole_sum` adds up the parts."""
    tl.store(sums + (kind * PARTS + part) * channels + c, value, c < channels)


@triton.jit
def whole_sum(sums, c, channels, kind, PARTS: tl.constexpr):
    """Add up the parts of one kind of sum, for channels c."""
    parts = tl.arange(0, PARTS)
    at = (kind * PARTS + parts)[:, None] * channels + c[None, :]
    return tl.sum(tl.load(sums + at, (c < channels)[None, :], 0.0), axis=0)


@triton.jit
def per_channel(given, c, channels, GIVEN: tl.constexpr, missing: tl.constexpr):
    """Load one value per channel, or take `missing` for all where the tensor is not given."""
    if GIVEN:
        return tl.load(given + c, c < channels, 0.0).to(tl.float32)
    else:  # noqa: RET505 (a branch of the compiler's, not of the program's)
        return tl.full([c.shape[0]], missing, tl.float32)

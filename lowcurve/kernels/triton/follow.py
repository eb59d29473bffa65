"""How are the singular vectors of many layers followed on a GPU? By 2 · steps + 6 launches for all of them.

One for the largest weights, one for the start, 2 · steps - 1 products, one for the small matrices, one for their
vectors' sums, two more products, and one for S, u and v.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from lowcurve.kernels.triton import follow_kernels as kernels
from lowcurve.kernels.triton.tables import addresses, number_table
from lowcurve.kernels.triton.unit import blocks

_TILE, _BLOCK, _SQUARINGS = 32, 4096, 12


class _Vectors(NamedTuple):
    """Where the vectors of all layers on one side lie: tiles, each layer's first number and first tile, how many."""

    tiles: Tensor
    first: Tensor
    first_tile: Tensor
    size: int
    tile_count: int
    most: int


@lru_cache(maxsize=64)
def _vectors(shapes: tuple[tuple[int, int], ...], device: torch.device) -> _Vectors:
    """Cut matrices (channels, positions) of all layers into tiles."""
    rows = [
        (layer, i, j)
        for layer, (height, width) in enumerate(shapes)
        for i in range(triton.cdiv(height, _TILE))
        for j in range(triton.cdiv(width, _TILE))
    ]
    counts = [triton.cdiv(height, _TILE) * triton.cdiv(width, _TILE) for height, width in shapes]
    first, first_tile = _sums([math.prod(shape) for shape in shapes]), _sums(counts)
    tiles = number_table(tuple(value for row in rows for value in row), torch.int64, device)
    firsts = [number_table(table, torch.int64, device) for table in (first, first_tile)]
    return _Vectors(tiles, firsts[0], firsts[1], first[-1], first_tile[-1], triton.next_power_of_2(max(counts)))


def _sums(values: list[int]) -> tuple[int, ...]:
    return 0, *torch.tensor(values).cumsum(0).tolist()


def follow(
    maps: Sequence[tuple[int, ...]],
    weights: Sequence[Tensor],
    left: Sequence[Tensor],
    right: Sequence[Tensor],
    slopes: Sequence[Tensor],
    grain: Tensor,
    steps: int,
) -> None:
    """Take u, v and S of every layer to those of its weight, in place, by `steps` steps of bidiagonalization.

    A map is its row of the table in `maps.py`; `grain` has those of all layers' u, one after the other.
    """
    device = weights[0].device
    table = number_table(tuple(value for row in maps for value in row), torch.int64, device)
    inputs = _vectors(tuple((m[0], m[2] * m[3]) for m in maps), device)
    outputs = _vectors(tuple((m[1], m[4] * m[5]) for m in maps), device)
    u, v = weights[0].new_empty(steps + 1, outputs.size), weights[0].new_empty(2, inputs.size)
    of_u, of_v = weights[0].new_empty(steps + 1, outputs.tile_count), weights[0].new_empty(steps + 1, inputs.tile_count)
    factors = weights[0].new_empty(len(maps), triton.next_power_of_2(max(steps, 16)))
    given = addresses(weights, device)
    of, offset, size, first_block, most_blocks = blocks(tuple(w.numel() for w in weights), device)
    largest = weights[0].new_empty(len(of))
    kernels.largest_kernel[(len(of),)](given, of, offset, size, largest, BLOCK=_BLOCK)
    where = (table, inputs.first, outputs.first, inputs.first_tile, outputs.first_tile, first_block)
    sizes = {"T": _TILE, "MOST": max(inputs.most, outputs.most), "BLOCKS": most_blocks}

    def transpose(k: int, follows: bool) -> None:
        vectors = (u[k], v[k % 2], v[1 - k % 2], of_u[k], of_v[k], of_v[k - 1], of_v[0])
        known = (largest, inputs.tiles, *where)
        kernels.transposed_kernel[(inputs.tile_count,)](given, *vectors, *known, FOLLOWS=follows, **sizes)

    def apply(k: int, into: int, follows: bool) -> None:
        vectors = (v[k % 2], u[into], u[k], of_v[k], of_u[into], of_u[k], of_v[0])
        known = (largest, outputs.tiles, *where)
        kernels.applied_kernel[(outputs.tile_count,)](given, *vectors, *known, FOLLOWS=follows, **sizes)

    kernels.start_kernel[(outputs.tile_count,)](
        addresses(left, device), grain, u[0], of_u[0], outputs.tiles, table, outputs.first, T=_TILE
    )
    for k in range(steps):
        transpose(k, follows=k > 0)
        if k + 1 < steps:
            apply(k, k + 1, follows=True)
    counts, tiles = (outputs.tile_count, inputs.tile_count), (inputs.first_tile, outputs.first_tile)
    shape = {"STEPS": steps, "SIZE": factors.shape[1]}
    kernels.ritz_kernel[(len(maps),)](
        of_u, of_v, factors, *counts, *tiles, **shape, MOST=sizes["MOST"], SQUARINGS=_SQUARINGS
    )
    places = (outputs.tiles, table, outputs.first, outputs.size)
    kernels.combined_kernel[(outputs.tile_count,)](u, factors, u[steps], of_u[steps], *places, **shape, T=_TILE)
    transpose(steps, follows=False)
    apply(steps, 0, follows=False)
    whole = _vectors(tuple((m[1], m[0] * m[6] * m[7]) for m in maps), device)
    found = (addresses(t, device) for t in (left, right, slopes))
    kernels.outer_kernel[(whole.tile_count,)](
        u[0], v[steps % 2], *found, of_u[0], of_v[steps], whole.tiles, *where[:5], T=_TILE, MOST=sizes["MOST"]
    )

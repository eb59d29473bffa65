"""W / σ with σ = ⟨W, S⟩ for all layers of a network at a time on GPUs, and its gradient: two launches each.

Weights differ in size. They are cut into blocks; a table says which layer a block belongs to, and where in it. Sums of
blocks are added in a fixed order.
"""

from collections.abc import Sequence
from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from lowcurve.kernels.triton.softplus import alike
from lowcurve.kernels.triton.tables import addresses

_BLOCK = 4096


@triton.jit
def products_kernel(a, b, of, offset, size, partial, BLOCK: tl.constexpr):
    """partial = Σ a b of each block of each layer; a and b are tables of addresses."""
    block = tl.program_id(0)
    layer = tl.load(of + block)
    at = tl.load(offset + block) + tl.arange(0, BLOCK)
    inside = at < tl.load(size + layer)
    left = tl.load(a + layer).to(tl.pointer_type(tl.float32))
    right = tl.load(b + layer).to(tl.pointer_type(tl.float32))
    tl.store(partial + block, tl.sum(tl.load(left + at, inside, 0.0) * tl.load(right + at, inside, 0.0)))


@triton.jit
def unit_kernel(w, y, sigma, of, offset, size, first, partial, BLOCK: tl.constexpr, MOST: tl.constexpr):
    """y = w / σ; the first block of a layer writes σ, or 1 where that is below the smallest normal number."""
    block = tl.program_id(0)
    layer = tl.load(of + block)
    found = _layer_sum(partial, first, layer, MOST)
    found = tl.where(found < 1.17549435e-38, 1.0, found)
    start = tl.load(offset + block)
    if start == 0:
        tl.store(sigma + layer, found)
    at = start + tl.arange(0, BLOCK)
    inside = at < tl.load(size + layer)
    weight = tl.load(tl.load(w + layer).to(tl.pointer_type(tl.float32)) + at, inside, 0.0)
    tl.store(tl.load(y + layer).to(tl.pointer_type(tl.float32)) + at, weight / found, inside)


@triton.jit
def unit_gradient_kernel(g, s, in_w, sigma, of, offset, size, first, partial, BLOCK: tl.constexpr, MOST: tl.constexpr):
    """in_w = (g - ⟨g, y⟩ s) / σ, with ⟨g, y⟩ the sum of a layer's partial products."""
    block = tl.program_id(0)
    layer = tl.load(of + block)
    product = _layer_sum(partial, first, layer, MOST)
    at = tl.load(offset + block) + tl.arange(0, BLOCK)
    inside = at < tl.load(size + layer)
    grad = tl.load(tl.load(g + layer).to(tl.pointer_type(tl.float32)) + at, inside, 0.0)
    slope = tl.load(tl.load(s + layer).to(tl.pointer_type(tl.float32)) + at, inside, 0.0)
    found = (grad - product * slope) / tl.load(sigma + layer)
    tl.store(tl.load(in_w + layer).to(tl.pointer_type(tl.float32)) + at, found, inside)


@triton.jit
def _layer_sum(partial, first, layer, MOST: tl.constexpr):
    """Add up the partial sums of one layer's blocks, of which no layer has more than MOST."""
    begin = tl.load(first + layer)
    at = begin + tl.arange(0, MOST)
    return tl.sum(tl.load(partial + at, at < tl.load(first + layer + 1), 0.0))


@lru_cache(maxsize=64)
def blocks(sizes: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor, int]:
    """Return each block's layer and offset, each layer's size and first block, and the most blocks of a layer."""
    counts = [triton.cdiv(size, _BLOCK) for size in sizes]
    of = [layer for layer, count in enumerate(counts) for _ in range(count)]
    offsets = [_BLOCK * k for count in counts for k in range(count)]
    first = [0, *torch.tensor(counts).cumsum(0).tolist()]
    tables = (torch.tensor(table, device=device) for table in (of, offsets, list(sizes), first))
    return *tables, triton.next_power_of_2(max(counts))


def unit_weights(weights: Sequence[Tensor], slopes: Sequence[Tensor]) -> tuple[list[Tensor], Tensor]:
    """Return every W / σ, and all σ = ⟨W, S⟩, for float32 tensors."""
    pairs = [alike(*pair) for pair in zip(weights, slopes, strict=True)]
    units, device = [torch.empty_like(weight) for weight, _ in pairs], weights[0].device
    w, s = (addresses([pair[i] for pair in pairs], device) for i in range(2))
    *tables, most = blocks(tuple(unit.numel() for unit in units), device)
    of, offset, size, first = tables
    partial, sigma = weights[0].new_empty(len(of)), weights[0].new_empty(len(weights))
    products_kernel[(len(of),)](w, s, of, offset, size, partial, BLOCK=_BLOCK)
    found = (addresses(units, device), sigma, of, offset, size, first, partial)
    unit_kernel[(len(of),)](w, *found, BLOCK=_BLOCK, MOST=most)
    return units, sigma


def unit_weights_gradient(
    grads: Sequence[Tensor], units: Sequence[Tensor], slopes: Sequence[Tensor], sigma: Tensor
) -> list[Tensor]:
    """Return every (g - ⟨g, Y⟩ S) / σ for Y = W / σ."""
    triples = [alike(*triple) for triple in zip(units, grads, slopes, strict=True)]
    found, device = [torch.empty_like(unit) for unit, _, _ in triples], sigma.device
    y, g, s = (addresses([triple[i] for triple in triples], device) for i in range(3))
    *tables, most = blocks(tuple(unit.numel() for unit in units), device)
    of, offset, size, first = tables
    partial = sigma.new_empty(len(of))
    products_kernel[(len(of),)](g, y, of, offset, size, partial, BLOCK=_BLOCK)
    given = (g, s, addresses(found, device), sigma, of, offset, size, first, partial)
    unit_gradient_kernel[(len(of),)](*given, BLOCK=_BLOCK, MOST=most)
    return found

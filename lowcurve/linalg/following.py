"""How do singular vectors follow weights that change? By Lanczos's method in every step, from where they were.

A large step of training adds a direction to a weight that no former vector has a part of; power iterations seem to
settle long before they find it (a norm of 1.6 was seen). So each step looks in the dimensions that powers of the map
span from the last vector and a fixed grain, which has a part in every direction. All layers of a network are one
operator, `lowcurve::follow`. On a CPU these are ten dimensions, and the next ten until it has settled: plain
convolutions of images in one compiled call; others one by one, in twenty; for the smallest maps, and small ones that
are no such convolutions, the Gram matrix is squared ten times. Elsewhere nobody may ask how far it has come: all layers
take the same steps together (`linalg/bidiagonal.py`), on GPUs by kernels for all of them.
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from lowcurve.compat import foreach
from lowcurve.kernels.cpu import power
from lowcurve.linalg.bidiagonal import DIMENSIONS, follow_together
from lowcurve.linalg.grain import grain, joined_grain
from lowcurve.linalg.linear_map import LinearMap
from lowcurve.linalg.singular import largest_singular

_SMALLEST, _SMALL_MATRIX, _SQUARINGS = 16, 128, 10
Maps = list[LinearMap]
Tensors = list[Tensor]
_LIBRARY = torch.library.Library("lowcurve", "FRAGMENT")
_LIBRARY.define(
    "follow(Tensor[] weights, Tensor(a!)[] left, Tensor(b!)[] right, Tensor(c!)[] slopes, int least, int[] maps) -> ()"
)

_Layer = tuple[LinearMap, Tensor, Tensor, Tensor, Tensor]  # its map, weight, left and right singular vector, and slope


@torch.no_grad()
def follow(
    maps: Sequence[LinearMap],
    weights: list[Tensor],
    left: list[Tensor],
    right: list[Tensor],
    slopes: list[Tensor],
    least: int,
) -> None:
    """Take the singular vectors u and v of each layer to those of its weight, and S to ∂⟨u, W v⟩/∂W, all in place.

    `least` is the least number of steps where that number is fixed.
    """
    numbers = [number for m in maps for number in m.numbers]
    torch.ops.lowcurve.follow(weights, left, right, slopes, least, numbers)


def _registered(method: Callable[[list[_Layer], int], None], key: str) -> None:
    """Let a function of layers compute the operator for one dispatch key."""

    def run(
        weights: list[Tensor],
        left: list[Tensor],
        right: list[Tensor],
        slopes: list[Tensor],
        least: int,
        numbers: list[int],
    ) -> None:
        method(list(zip(_maps(tuple(numbers)), weights, left, right, slopes, strict=True)), least)
        # below the dispatcher's key for autograd nobody else tells graphs that saved these tensors
        torch.autograd.graph.increment_version([t for t in (*left, *right, *slopes) if not t.is_inference()])

    _LIBRARY.impl("follow", run, key)


def _on_cpu(layers: list[_Layer], _least: int) -> None:
    kinds: dict[Callable[..., None], list[_Layer]] = {}
    for layer in layers:
        kinds.setdefault(_method(*layer[:4]), []).append(layer)
    for method, chosen in kinds.items():
        method(*_columns(chosen))


def _elsewhere(layers: list[_Layer], least: int) -> None:
    follow_together(*_columns(layers), least=least)


def _on_gpu(layers: list[_Layer], least: int) -> None:
    """Follow convolutions of images and Linear layers by kernels for all of them, the rest by PyTorch."""
    rows = [m.image_numbers if _single(*tensors) else None for m, *tensors in layers]
    taken = [(row, *layer[1:]) for layer, row in zip(layers, rows, strict=True) if row is not None]
    rest = [layer for layer, row in zip(layers, rows, strict=True) if row is None]
    if taken:
        _by_kernels(*_columns(taken), least=least)
    if rest:
        follow_together(*_columns(rest), least=least)


def _columns(layers: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Return maps, weights, left, right and slopes of layers as a list each."""
    return [list(column) for column in zip(*layers, strict=True)]


def _by_kernels(rows: Any, weights: Any, left: Any, right: Any, slopes: Any, *, least: int) -> None:
    from lowcurve.kernels.triton.follow import follow as follow_by_kernels

    given, u, v, s = ([tensor.contiguous() for tensor in own] for own in (weights, left, right, slopes))
    grains = joined_grain(tuple(vector.shape for vector in u), u[0].dtype, u[0].device)
    follow_by_kernels(rows, given, u, v, s, grains, max(DIMENSIONS, least))
    pairs = zip((*left, *right, *slopes), (*u, *v, *s), strict=True)
    apart = [(into, found) for into, found in pairs if into is not found]  # in channels_last memory
    if apart:
        foreach("copy_", [into for into, _ in apart], [found for _, found in apart])


def _single(*tensors: Tensor) -> bool:
    return all(tensor.dtype is torch.float32 for tensor in tensors)


_registered(_elsewhere, "CompositeExplicitAutograd")
_registered(_on_cpu, "CPU")
_registered(_on_gpu, "CUDA")
torch.library.register_fake("lowcurve::follow", lambda *_: None)


@lru_cache(maxsize=64)
def _maps(numbers: tuple[int, ...]) -> list[LinearMap]:
    """Return the maps from their numbers, which are all that an operator may be given."""
    maps, rest = [], iter(numbers)
    for dims in rest:
        maps.append(LinearMap.from_numbers(dims, [next(rest) for _ in range(7 * dims + 4)]))
    return maps


def _method(m: LinearMap, weight: Tensor, left: Tensor, right: Tensor) -> Callable[..., None]:
    smaller = min(math.prod(m.input_shape), math.prod(m.output_shape))
    if smaller > _SMALLEST and power.iterates(m, weight, left, right):
        return _compiled
    return _squarings if smaller <= _SMALL_MATRIX else _lanczos


def _lanczos(maps: Maps, weights: Tensors, left: Tensors, right: Tensors, slopes: Tensors) -> None:
    """Look in the twenty dimensions that powers of the map span from the present vector and the grain, until settled.

    Ten are too few where groups share nothing: one that was 3 % steeper than that of the present vector was not seen.
    """
    for m, weight, u, v, slope in zip(maps, weights, left, right, slopes, strict=True):
        if bool(weight.isfinite().all()):  # one that is no number keeps the present vectors
            with torch.autocast(weight.device.type, enabled=False):
                pair = largest_singular(m, weight, _unit(v) + grain(v, 1.0), 1e-2, basis_size=20)
            u.copy_(pair.left)
            v.copy_(pair.right)
        slope.copy_(m.outer(u, v))


def _compiled(maps: Maps, weights: Tensors, left: Tensors, right: Tensors, slopes: Tensors) -> None:
    foreach("add_", left, [grain(u, 1.0) for u in left])
    power.follow(maps, weights, left, right, slopes)


def _squarings(maps: Maps, weights: Tensors, left: Tensors, right: Tensors, slopes: Tensors) -> None:
    """Find the vectors from the 2^10th power of the Gram matrix: what is smaller by 1 % is gone."""
    with torch.autocast(weights[0].device.type, enabled=False):
        for m, weight, u, v, slope in zip(maps, map(_scaled, weights), left, right, slopes, strict=True):
            matrix = _matrix(m, weight)
            flat = matrix.shape[0] <= matrix.shape[1]
            gram = matrix @ matrix.mT if flat else matrix.mT @ matrix
            for _ in range(_SQUARINGS):
                gram = gram / gram.diagonal().sum().clamp_min(torch.finfo(gram.dtype).tiny)
                gram = gram @ gram
            near = _unit(gram.index_select(1, gram.diagonal().argmax()).mT)
            far = _unit(near @ matrix if flat else near @ matrix.mT)
            u.copy_((near if flat else far).view(u.shape))
            v.copy_((far if flat else near).view(v.shape))
            slope.copy_(m.outer(u, v))


def _matrix(m: LinearMap, weight: Tensor) -> Tensor:
    """Write the map out, by the images of unit vectors on its smaller side."""
    if not m.stride:
        return weight
    shapes = m.input_shape, m.output_shape
    size, small = min((math.prod(shape), i) for i, shape in enumerate(shapes))
    units = torch.eye(size, dtype=weight.dtype, device=weight.device).view(size, *shapes[small])
    return m.adjoint(weight, units).flatten(1) if small else m.apply(weight, units).flatten(1).mT


def _scaled(weight: Tensor) -> Tensor:
    """Return the weight divided by its largest entry, so that no square is beyond what a float holds."""
    largest = weight.abs().amax()
    return weight / torch.where(largest > 0, largest, torch.ones_like(largest))


def _unit(x: Tensor) -> Tensor:
    return x / x.norm().clamp_min(torch.finfo(x.dtype).tiny)

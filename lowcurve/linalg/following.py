"""How do singular vectors follow weights that change? By Lanczos's method in every step, from where they were.

A large step of training adds a direction to a weight that no former vector has a part of; power iterations seem to
settle long before they find it (a norm of 1.6 was seen). So on a CPU each step looks in the ten dimensions that
powers of the map span from the last vector and a fixed grain, which has a part in every direction, and in the next
ten until it has settled: plain convolutions of images in one compiled call, others by PyTorch. For the smallest maps
the Gram matrix is squared ten times. On other devices, where nobody may ask how far it has come, there are a few
power iterations from the last vector and a little grain. Each group of a convolution has vectors of its own there.
"""

import math
from functools import lru_cache

import torch
from torch import Tensor

from lowcurve.compat import dispatch_modes_are_active, foreach
from lowcurve.kernels.cpu import power
from lowcurve.linalg.linear_map import LinearMap
from lowcurve.linalg.singular import largest_singular

FIXED_ITERATIONS = 2  # on other devices than CPUs
_GRAIN = 0.05
_SMALL_MATRIX, _SQUARINGS = 128, 10


@torch.no_grad()
def follow(
    maps: list[LinearMap], weights: list[Tensor], left: list[Tensor], right: list[Tensor], least: int
) -> list[Tensor]:
    """Take the singular vectors of each layer, in place, to those of its weight; return each S = ∂⟨u, W v⟩/∂W."""
    slopes: list[Tensor | None] = [None] * len(maps)
    kinds: dict[object, list[int]] = {}
    for i, given in enumerate(zip(maps, weights, left, right, strict=True)):
        kinds.setdefault(_method(*given), []).append(i)
    for method, chosen in kinds.items():
        own = [[values[i] for i in chosen] for values in (maps, weights, left, right)]
        if method is _fixed:
            foreach("add_", own[2], [grain(u, _GRAIN) for u in own[2]])  # type: ignore[arg-type]
        for i, slope in zip(chosen, method(*own, least), strict=True):  # type: ignore[operator]
            slopes[i] = slope
    return slopes  # type: ignore[return-value]


def _method(m: LinearMap, weight: Tensor, left: Tensor, right: Tensor) -> object:
    if min(math.prod(m.input_shape), math.prod(m.output_shape)) <= _SMALL_MATRIX:
        return _squarings
    if power.iterates(m, weight, left, right):
        return _compiled
    # A mode that looks on sees what other devices do: no number is asked for in the middle of a step.
    return _lanczos if weight.device.type == "cpu" and not dispatch_modes_are_active() else _fixed


@torch.library.custom_op("lowcurve::follow", mutates_args=("left", "right", "slope"))
def follow_in_graph(
    weight: Tensor,
    left: Tensor,
    right: Tensor,
    slope: Tensor,
    least: int,
    sizes: list[int],
    settings: list[int],
    groups: int,
    circular: bool,
) -> None:
    """Do what `follow` does for one layer, as a single operation of a compiled graph; see `flattened`."""
    dims = len(settings) // 5
    lists = [tuple(settings[i * dims : (i + 1) * dims]) for i in range(5)]
    stride, above, below, dilation, kernel = lists
    ends = tuple(sizes[: 1 + dims]), tuple(sizes[1 + dims :])
    m = LinearMap(*ends, stride, tuple(zip(above, below, strict=True)), dilation, kernel, groups, circular)
    slope.copy_(follow([m], [weight], [left], [right], least)[0])


def flattened(m: LinearMap) -> tuple[list[int], list[int], int, bool]:
    """Return a map's fields as lists of numbers, which are all that an operation of a graph may be given."""
    above, below = ([pair[i] for pair in m.padding] for i in range(2))
    settings = [*m.stride, *above, *below, *m.dilation, *m.kernel]
    return [*m.input_shape, *m.output_shape], settings, m.groups, m.circular


def _lanczos(
    maps: list[LinearMap], weights: list[Tensor], left: list[Tensor], right: list[Tensor], least: int
) -> list[Tensor]:
    """Look in the ten dimensions that powers of the map span from the present vector and the grain, until settled."""
    slopes = []
    for m, weight, u, v in zip(maps, weights, left, right, strict=True):
        start = _unit(v) + grain(v, 1.0)
        slopes.append(_anew(m, weight, u, v, start, 1e-2, 10))
    return slopes


def _compiled(
    maps: list[LinearMap], weights: list[Tensor], left: list[Tensor], right: list[Tensor], least: int
) -> list[Tensor]:
    foreach("add_", left, [grain(u, 1.0) for u in left])
    return power.follow(maps, list(map(_scaled, weights)), left, right)


def _anew(
    m: LinearMap, weight: Tensor, left: Tensor, right: Tensor, start: Tensor, tolerance: float, size: int
) -> Tensor:
    """Find the vectors by Lanczos's method, in place, and return S; one that is no number keeps the present ones."""
    if bool(weight.isfinite().all()):
        with torch.autocast(weight.device.type, enabled=False):
            pair = largest_singular(m, weight, start, tolerance, basis_size=size)
        left.copy_(pair.left)
        right.copy_(pair.right)
    return m.outer(left, right)


def _fixed(
    maps: list[LinearMap], weights: list[Tensor], left: list[Tensor], right: list[Tensor], least: int
) -> list[Tensor]:
    return power_iterations(maps, list(map(_scaled, weights)), left, right, max(least, FIXED_ITERATIONS))


def power_iterations(
    maps: list[LinearMap], weights: list[Tensor], left: list[Tensor], right: list[Tensor], count: int
) -> list[Tensor]:
    """Iterate all layers together, so many times."""
    for _ in range(count):
        _, norms = _iterate(maps, weights, left, right)
    return _slopes(maps, left, right, norms)


def _iterate(
    maps: list[LinearMap], weights: list[Tensor], left: list[Tensor], right: list[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """Replace v by Wᵀu and u by W v, of unit length in each group; return both's lengths before."""
    with torch.autocast(weights[0].device.type, enabled=False):
        before = _assign_units(maps, right, [m.adjoint(w, u) for m, w, u in zip(maps, weights, left, strict=True)])
        after = _assign_units(maps, left, [m.apply(w, v) for m, w, v in zip(maps, weights, right, strict=True)])
    return before, after


def _assign_units(maps: list[LinearMap], buffers: list[Tensor], values: list[Tensor]) -> list[Tensor]:
    values = [value.contiguous() for value in values]
    blocks = [block for m, value in zip(maps, values, strict=True) for block in value.view(m.groups, -1).unbind()]
    norms = foreach("norm", blocks)
    lengths = foreach("clamp_min", norms, torch.finfo(values[0].dtype).tiny)
    foreach("div_", blocks, lengths)
    foreach("copy_", buffers, values)
    return list(norms)


def _slopes(maps: list[LinearMap], left: list[Tensor], right: list[Tensor], norms: list[Tensor]) -> list[Tensor]:
    """Return each layer's S, in which only the group of the largest norm takes part."""
    slopes, first = [], 0
    with torch.autocast(left[0].device.type, enabled=False):
        for m, u, v in zip(maps, left, right, strict=True):
            if m.groups > 1:
                best = torch.stack(norms[first : first + m.groups]).argmax()
                only = torch.zeros(m.groups, 1, dtype=u.dtype, device=u.device).index_fill_(0, best, 1.0)
                u = (u.reshape(m.groups, -1) * only).view(u.shape)
            slopes.append(m.outer(u, v))
            first += m.groups
    return slopes


def _squarings(
    maps: list[LinearMap], weights: list[Tensor], left: list[Tensor], right: list[Tensor], least: int
) -> list[Tensor]:
    """Find the vectors from the 2^10th power of the Gram matrix: what is smaller by 1 % is gone."""
    slopes = []
    with torch.autocast(weights[0].device.type, enabled=False):
        for m, weight, u, v in zip(maps, map(_scaled, weights), left, right, strict=True):
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
            slopes.append(m.outer(u, v))
    return slopes


def _matrix(m: LinearMap, weight: Tensor) -> Tensor:
    """Write the map out, by the images of unit vectors on its smaller side."""
    if not m.stride:
        return weight
    shapes = m.input_shape, m.output_shape
    size, small = min((math.prod(shape), i) for i, shape in enumerate(shapes))
    units = torch.eye(size, dtype=weight.dtype, device=weight.device).view(size, *shapes[small])
    return m.adjoint(weight, units).flatten(1) if small else m.apply(weight, units).flatten(1).mT


def grain(like: Tensor, length: float) -> Tensor:
    """Return a fixed vector of that length with a part in every direction, shaped as `like`: (1, channels, ...).

    Half of it is constant over each channel: where the singular vectors of a convolution go as it learns.
    """
    return _grain(tuple(like.shape), length, like.dtype, like.device)


@lru_cache(maxsize=256)
def _grain(shape: tuple[int, ...], length: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    smooth, rough = (_noise((*shape[:2], *(1 for _ in shape[2:])), device).expand(shape), _noise(shape, device))
    mixed = smooth / smooth.norm() + rough / rough.norm()
    return (mixed * (length / mixed.norm())).to(dtype)


def _noise(shape: tuple[int, ...], device: torch.device) -> Tensor:
    places = torch.arange(1, math.prod(shape) + 1, dtype=torch.float64, device=device)
    noise = places.mul(12.9898).sin().mul(43758.5453)
    return (noise - noise.floor() - 0.5).view(shape)


def _scaled(weight: Tensor) -> Tensor:
    """Return the weight divided by its largest entry, so that no square is beyond what a float holds."""
    largest = weight.abs().amax()
    return weight / torch.where(largest > 0, largest, torch.ones_like(largest))


def _unit(x: Tensor) -> Tensor:
    return x / x.norm().clamp_min(torch.finfo(x.dtype).tiny)

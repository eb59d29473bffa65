"""Square (Andriushchenko et al. 2020): random search by square patches; it needs no gradient, only logits.

Inputs of any shape work: an input is seen as channels × height × width, a signal as channels × 1 × length and
a flat vector as 1 × 1 × d. Where a square does not fit, the patch is a rectangle of the same area.
"""

import math
from functools import cache

import torch
from torch import Tensor, nn

from lowcurve.attacks import ball, randomness
from lowcurve.attacks.losses import excess, finite_logits, misclassified
from lowcurve.attacks.trials import Hunt, first_success

_SHARE = 0.8  # share of the image that the first patches cover
_HALVINGS = (0.001, 0.005, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8)  # parts of the search after which it is halved


def random_squares(
    model: nn.Module, x: Tensor, y: Tensor, eps: Tensor, *, norm: float, steps: int, restarts: int, seed: int
) -> Tensor:
    """Try `steps` random patches per sample, `restarts` times, and keep those that shrink the margin."""
    key = randomness.keys(x, seed)
    images = x.reshape(-1, *_image_shape(x.shape[1:]))

    def run(rows: Tensor, trial: Tensor) -> tuple[Tensor, Tensor]:
        search = randomness.derive_keys(key[rows], trial)
        found, points = _search(model, images[rows], y[rows], eps[rows], search, norm, steps, x.shape[1:])
        return found, points.reshape(x[rows].shape)

    with torch.no_grad():
        return first_success(x, restarts, run)


def _search(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    eps: Tensor,
    key: Tensor,
    norm: float,
    steps: int,
    shape: torch.Size,
) -> tuple[Tensor, Tensor]:
    """Search from one start per row until broken; `shape` is what the model takes. Say which rows were, and where."""
    hunt = Hunt(x)
    start, propose = (_stripes, _shift) if norm == math.inf else (_tiles, _move)
    point, best, candidate = x, torch.full_like(eps, -torch.inf), start(x, eps, key)
    for step in range(steps + 1):
        logits = model(candidate.reshape(-1, *shape))
        value, broken = excess(logits, y).where(finite_logits(logits), -torch.inf), misclassified(logits, y)
        better = value > best
        point = torch.where(ball.column(better, x), candidate, point)
        best = torch.where(better, value, best)
        if broken.any():
            hunt.leave(broken, candidate)
            x, y, eps, key, point, best = hunt.keep(~broken, x, y, eps, key, point, best)
        if step == steps or not len(x):
            break
        candidate = propose(point, x, eps, randomness.derive_keys(key, step), _patch(x.shape, step / steps, norm))
    return hunt.found, hunt.points


def _image_shape(shape: torch.Size) -> tuple[int, int, int]:
    """Read the shape of one sample as (channels, height, width).

    >>> _image_shape(torch.Size([7])), _image_shape(torch.Size([2, 9])), _image_shape(torch.Size([3, 4, 5]))
    ((1, 1, 7), (2, 1, 9), (3, 4, 5))
    """
    channels = shape[0] if len(shape) > 1 else 1
    return channels, math.prod(shape[1:-1]), shape[-1]


def _patch(shape: torch.Size, progress: float, norm: float) -> tuple[int, int]:
    """Return the height and width of the patch after a part of the search: √(share · area); odd, ≥ 3 for ℓ₂.

    >>> _patch(torch.Size([1, 3, 32, 32]), 0, math.inf), _patch(torch.Size([1, 1, 1, 64]), 0, math.inf)
    ((29, 29), (1, 51))
    """
    height, width = shape[-2:]
    area = _SHARE * 0.5 ** sum(progress > part for part in _HALVINGS) * height * width
    side = max(round(math.sqrt(area)), 1)
    if norm == 2:
        side = max(side, 3) + (max(side, 3) + 1) % 2
    if side > height:
        return height, max(min(round(area / height), width), min(side, width))
    if side > width:
        return max(min(round(area / width), height), min(side, height)), width
    return side, side


def _window(draws: Tensor, image: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """Place a patch at random: its mask (N, 1, height, width), and each pixel's row and column within it."""
    height, width = image.shape[-2:]
    top = (draws[:, 0] * (height - size[0] + 1)).long()
    left = (draws[:, 1] * (width - size[1] + 1)).long()
    row = torch.arange(height, device=image.device)[:, None] - top[:, None, None]
    column = torch.arange(width, device=image.device) - left[:, None, None]
    mask = (row >= 0) & (row < size[0]) & (column >= 0) & (column < size[1])
    return mask[:, None], row.clamp(0, size[0] - 1), column.clamp(0, size[1] - 1)


def _stripes(x: Tensor, eps: Tensor, key: Tensor) -> Tensor:
    """Start for ℓ∞: vertical stripes of ±ε, one sign per channel and column."""
    count, channels, _, width = x.shape
    sign = randomness.signs(key, channels * width).to(x.dtype).view(count, channels, 1, width)
    return ball.project(x + ball.column(eps, x) * sign, x, eps, math.inf)


def _shift(point: Tensor, x: Tensor, eps: Tensor, key: Tensor, size: tuple[int, int]) -> Tensor:
    """Propose for ℓ∞: move one patch by ±2ε, one sign per channel, and clip to the ball."""
    mask, _, _ = _window(randomness.uniform(key, 2), x, size)
    sign = randomness.signs(randomness.derive_keys(key, 0), x.shape[1]).to(x.dtype)[:, :, None, None]
    return ball.project(point + 2 * ball.column(eps, x) * sign * mask, x, eps, math.inf)


def _bump(height: int, width: int) -> Tensor:
    """Return a pyramid of unit norm: at Chebyshev distance r from the middle it is ∝ Σ_{k≥r} 1/(k+1)²."""
    row = (torch.arange(height) - height // 2).abs()
    column = (torch.arange(width) - width // 2).abs()
    terms = 1 / torch.arange(1, max(height, width) // 2 + 2, dtype=torch.float64) ** 2
    tails = terms.flip(0).cumsum(0).flip(0)
    bump = tails[torch.maximum(row[:, None], column)]
    return bump / torch.linalg.vector_norm(bump)


def _dipole(height: int, width: int) -> Tensor:
    """Return a bump above its negative, of unit norm; beside it where there is one row, alone in one pixel."""
    if height == 1:
        return _dipole(width, 1).T if width > 1 else torch.ones(1, 1, dtype=torch.float64)
    upper = height // 2
    return torch.cat([_bump(upper, width), -_bump(height - upper, width)]) / math.sqrt(2)


@cache
def _dipoles(size: tuple[int, int]) -> Tensor:
    """Return the two patterns of a patch, (2, height, width): the bumps one above the other, and side by side."""
    height, width = size
    return torch.stack([_dipole(height, width), _dipole(width, height).T])


def _tiles(x: Tensor, eps: Tensor, key: Tensor) -> Tensor:
    """Start for ℓ₂: the image tiled with dipoles, one sign per channel and tile, scaled to the radius."""
    count, channels, height, width = x.shape
    tile = max(min(height, width) // 5, 1)
    size = (min(tile, height), tile if height > 1 else max(width // 25, 1))
    rows, columns = -(-height // size[0]), -(-width // size[1])
    sign = randomness.signs(key, channels * rows * columns).to(x.dtype).view(count, channels, rows, columns)
    sign = sign.repeat_interleave(size[0], 2).repeat_interleave(size[1], 3)[:, :, :height, :width]
    pattern = _dipoles(size)[0].to(x).repeat(rows, columns)[:height, :width]
    delta = ball.unit(sign * pattern)
    return ball.project(x + ball.column(eps, x) * delta, x, eps, 2)


def _move(point: Tensor, x: Tensor, eps: Tensor, key: Tensor, size: tuple[int, int]) -> Tensor:
    """Propose for ℓ₂: empty one patch; its mass, and what the ball has left, join another as a dipole."""
    draws = randomness.uniform(key, 5)
    delta = point - x
    target, row, column = _window(draws[:, :2], x, size)
    source, _, _ = _window(draws[:, 2:4], x, size)
    which = (draws[:, 4] < 0.5).long()[:, None, None]
    pattern = _dipoles(size).to(x)[which, row, column][:, None]
    sign = randomness.signs(randomness.derive_keys(key, 0), x.shape[1]).to(x.dtype)[:, :, None, None]
    fresh = (sign * pattern + _unit(delta * target)) * target
    spare = (eps**2 - (delta**2).flatten(1).sum(1)).clamp_min(0)[:, None, None, None] / x.shape[1]
    mass = (spare + (delta * (target | source)).square().sum((2, 3), keepdim=True)).sqrt()
    moved = torch.where(target, _unit(fresh) * mass, delta * ~source)
    return ball.project(x + ball.column(eps, x) * ball.unit(moved), x, eps, 2)


def _unit(delta: Tensor) -> Tensor:
    """Scale each channel to unit norm; zero stays zero."""
    return delta / (delta.square().sum((2, 3), keepdim=True).sqrt() + 1e-12)

"""FAB-T: Fast Adaptive Boundary (Croce and Hein 2020, arXiv 1907.02044), towards each of the likeliest wrong classes.

It looks for the nearest mistake, not for the worst point of a ball: from the present point and from x itself go to the
linearized boundary of the margin, mix both, and draw back towards x from every mistake. So it needs no step size, and
finds what lies just within ε. Here a run ends with its first mistake within ε.
"""

import torch
from torch import Tensor, nn

from lowcurve.attacks import ball, randomness
from lowcurve.attacks.losses import ascent, misclassified, ranked_targets, targeted_gap
from lowcurve.attacks.trials import Hunt, first_success

_OVERSHOOT = 1.05  # how far beyond the linearized boundary a step goes
_PULL = 0.1  # the most that the step from x itself counts
_RETREAT = 0.9  # of the way from x to a mistake that was found


def fab_targeted(
    model: nn.Module, x: Tensor, y: Tensor, eps: Tensor, *, norm: float, steps: int, restarts: int, seed: int
) -> Tensor:
    """Run FAB towards each of the nine likeliest wrong classes, from x and then from `restarts` - 1 random points."""
    key = randomness.keys(x, seed)
    targets = ranked_targets(model, x, y)

    def run(rows: Tensor, trial: Tensor) -> tuple[Tensor, Tensor]:
        near = ball.random_start(randomness.derive_keys(key[rows], trial), x[rows], eps[rows] / 2, norm)
        start = torch.where(ball.column(trial % restarts == 0, x), x[rows], near)
        return _fab(model, start, x[rows], y[rows], targets[rows, trial // restarts], eps[rows], norm, steps)

    return first_success(x, targets.shape[1] * restarts, run)


def _fab(
    model: nn.Module, point: Tensor, x: Tensor, y: Tensor, target: Tensor, eps: Tensor, norm: float, steps: int
) -> tuple[Tensor, Tensor]:
    """Run FAB on all rows until a mistake within ε is found; return which rows have one, and where."""
    hunt = Hunt(x)
    for step in range(steps + 1):
        logits, gap, slope = ascent(model, point, targeted_gap, y, target)
        mistaken = misclassified(logits, y)
        broken = mistaken & (ball.distance(point, x, norm) <= eps.double())
        if broken.any():
            hunt.leave(broken, point)
            state = hunt.keep(~broken, point, x, y, target, eps, gap, slope, mistaken)
            point, x, y, target, eps, gap, slope, mistaken = state
        if step == steps or not len(x):
            break
        ahead = _advance(point, x, gap, slope, mistaken, norm)
        lost = ball.column(gap.isneginf(), x)  # no answer there: halfway back to x, which has one
        point = torch.where(lost, (x + point) / 2, ahead)
    return hunt.found, hunt.points


def _advance(point: Tensor, x: Tensor, gap: Tensor, slope: Tensor, mistaken: Tensor, norm: float) -> Tensor:
    """Go on from `point`, or from a tenth of the way back to x if it is a mistake; see the module's first lines.

    With δ and δ₀ the shortest ways from there and from x to the plane gap + slope · (x' - point) = 0 within the box
    and η the overshoot, the result is (1 - α)(there + η δ) + α (x + η δ₀) with α = ‖δ‖ / (‖δ‖ + ‖δ₀‖), at most `_PULL`.
    """
    back = torch.where(mistaken, _RETREAT, 1.0)
    origin, slope, gap = x.double(), slope.double(), gap.double()
    move = point.double() - origin
    there = origin + ball.column(back, x) * move
    along = (slope * move).flatten(1).sum(1)
    here = to_plane(there, slope, gap - (1 - back) * along, norm)
    first = to_plane(origin, slope, gap - along, norm)
    size, pull = (torch.linalg.vector_norm(way.flatten(1), norm, dim=1) for way in (here, first))
    share = ball.column((size / (size + pull).clamp_min(torch.finfo(size.dtype).tiny)).clamp_max(_PULL), x)
    ahead = (1 - share) * (there + _OVERSHOOT * here) + share * (origin + _OVERSHOOT * first)
    return ahead.clamp(0, 1).to(x.dtype)


def to_plane(point: Tensor, slope: Tensor, gap: Tensor, norm: float) -> Tensor:
    """Return the shortest δ with gap + slope · δ = 0 and point + δ in [0, 1]; where none exists, one that gets nearest.

    Every entry of δ grows with λ ≥ 0 until its pixel reaches the end of the box: by λ |slopeⱼ| in ℓ₂, by λ in ℓ∞. So
    Σⱼ aⱼ min(λ, rⱼ) = |gap| with aⱼ = slopeⱼ² or |slopeⱼ| and rⱼ the λ at which pixel j arrives; it is solved exactly.

    >>> to_plane(torch.tensor([[0.5, 0.5]]), torch.tensor([[3.0, 4.0]]), torch.tensor([-1.0]), 2)
    tensor([[0.1200, 0.1600]])
    """
    steepest = slope.flatten(1).abs().amax(1)
    usable = steepest > 0
    slope = (slope / ball.column(torch.where(usable, steepest, 1), slope)).flatten(1)
    need = torch.where(usable, gap.abs() / steepest, 0)
    side = -gap.sign()[:, None] * slope.sign()
    room = torch.where(side > 0, 1 - point.flatten(1), point.flatten(1))
    speed = slope.abs() if norm == 2 else torch.ones_like(slope)
    arrival = torch.where(slope == 0, 0, room / speed)
    level = _fill(slope.abs() * speed, arrival, need)
    return (side * speed * torch.minimum(level[:, None], arrival)).view(point.shape)


def _fill(rate: Tensor, full: Tensor, need: Tensor) -> Tensor:
    """Return λ with Σⱼ rateⱼ min(λ, fullⱼ) = need per row, or the largest fullⱼ where that is not enough.

    >>> _fill(torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 5.0]]), torch.tensor([7.0]))  # 1 + 2 · 3
    tensor([3.])
    """
    full, order = full.sort(1)
    rate = rate.gather(1, order)
    filled, open_rate = (rate * full).cumsum(1), rate.flip(1).cumsum(1).flip(1) - rate  # after each arrival
    reached = filled + full * open_rate
    count = (reached < need[:, None]).sum(1, keepdim=True)  # arrivals before the need is met
    zero = torch.zeros_like(filled[:, :1])
    before = torch.cat([zero, filled], 1).gather(1, count)
    rest = torch.cat([rate.sum(1, keepdim=True), open_rate], 1).gather(1, count)
    low = torch.cat([zero, full], 1).gather(1, count)
    high = torch.cat([full, full[:, -1:]], 1).gather(1, count)
    level = (need[:, None] - before) / rest.clamp_min(torch.finfo(rest.dtype).tiny)
    return level.clamp(low, high)[:, 0]

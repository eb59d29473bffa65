"""Auto-PGD (Croce and Hein 2020): APGD-CE climbs the cross-entropy, APGD-T the targeted DLR loss of each target class.

Both take any number of classes from two on; targets come in order, the likeliest wrong class first. The step starts at
2ε and is halved at checkpoints where the loss rose in too few steps or found nothing better; the run then goes on from
its best point.

One rule is ours: after 20 steps, a run is given up at a checkpoint if gaining four times as fast as it does now
would still leave a tenth of the gap that it began with. Runs that break a sample late are almost there early,
so this saves most of the work at the same robust accuracy; `benchmarks/attacks.md` has the figures.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn

from lowcurve.attacks import ball, randomness
from lowcurve.attacks.losses import ascent, misclassified, ranked_targets, targeted_dlr
from lowcurve.attacks.trials import Hunt, first_success
from lowcurve.objectives.cross_entropy import log_odds_against

TargetedLoss = Callable[[Tensor, Tensor, Tensor], Tensor]

_MOMENTUM = 0.75
_RISES = 0.75  # share of the steps that must raise the loss for the step size to stay
_PATIENCE = 20  # steps before a run may be given up
_OPTIMISM = 4.0  # how many times as fast as it does now a run may gain from here on, before it is given up
_SHORTFALL = 0.1  # share of the first gap that it may nevertheless miss by


def apgd_cross_entropy(
    model: nn.Module, x: Tensor, y: Tensor, eps: Tensor, *, norm: float, steps: int, restarts: int, seed: int
) -> Tensor:
    """Run APGD away from the label, `restarts` times, until broken.

    It climbs the logarithm of the odds against y, of which the cross-entropy is the softplus: see `projected_gradient`.
    A run that is given up ends with odds for y, so with y as the answer.
    """
    key = randomness.keys(x, seed)

    def run(rows: Tensor, trial: Tensor) -> tuple[Tensor, Tensor]:
        start = ball.random_start(randomness.derive_keys(key[rows], trial), x[rows], eps[rows], norm)
        state = _start(start, x[rows], y[rows], y[rows], eps[rows])
        return _apgd(model, state, norm, steps, lambda logits, label, _: log_odds_against(logits, label))

    return first_success(x, restarts, run)


def apgd_targeted(
    model: nn.Module, x: Tensor, y: Tensor, eps: Tensor, *, norm: float, steps: int, restarts: int, seed: int
) -> Tensor:
    """Run APGD towards each of the nine likeliest wrong classes, `restarts` times each, until broken."""
    key = randomness.keys(x, seed)
    targets = ranked_targets(model, x, y)

    def run(rows: Tensor, trial: Tensor) -> tuple[Tensor, Tensor]:
        target = targets[rows, trial // restarts]
        start = ball.random_start(randomness.derive_keys(key[rows], trial), x[rows], eps[rows], norm)
        return _apgd(model, _start(start, x[rows], y[rows], target, eps[rows]), norm, steps, targeted_dlr)

    return first_success(x, targets.shape[1] * restarts, run)


@dataclass
class _State:
    """One run per row: where it is, where it was, the best it saw, and what the next checkpoint looks at."""

    x: Tensor
    y: Tensor
    target: Tensor
    eps: Tensor
    step: Tensor
    point: Tensor
    previous: Tensor
    gradient: Tensor
    best_point: Tensor
    best_gradient: Tensor
    best: Tensor
    last: Tensor
    rises: Tensor  # steps since the last checkpoint that raised the loss
    checked: Tensor  # the best loss at the last checkpoint
    midway: Tensor  # the best loss half a window before the next checkpoint
    first: Tensor  # the loss at the start
    reduced: Tensor  # whether the last checkpoint halved the step

    def select(self, mask: Tensor) -> "_State":
        return _State(*(getattr(self, field.name)[mask] for field in fields(self)))


def _start(point: Tensor, x: Tensor, y: Tensor, target: Tensor, eps: Tensor) -> _State:
    low = torch.full_like(eps, -torch.inf)
    zero = torch.zeros_like(x)
    return _State(
        x, y, target, eps, step=2 * eps, point=point, previous=point, gradient=zero, best_point=x,
        best_gradient=zero, best=low, last=-low, rises=torch.zeros_like(eps), checked=low, midway=low, first=low,
        reduced=torch.ones_like(y, dtype=torch.bool),
    )  # fmt: skip


def _apgd(model: nn.Module, state: _State, norm: float, steps: int, loss: TargetedLoss) -> tuple[Tensor, Tensor]:
    """Run APGD on all rows of `state` until broken; return which rows were, and where."""
    hunt = Hunt(state.x)
    checkpoints = _checkpoints(steps)
    midways = {iteration - _half(window) for iteration, window in checkpoints.items()}
    for iteration in range(steps + 1):
        logits, value, state.gradient = ascent(model, state.point, loss, state.y, state.target)
        broken = misclassified(logits, state.y)
        if broken.any():
            hunt.leave(broken, state.point)
            hunt.keep(~broken)
            state, value = state.select(~broken), value[~broken]
        if iteration == steps or not len(value):
            break
        _remember(state, value)
        if iteration == 0:
            state.first = value
        if iteration in midways:
            state.midway = state.best
        if iteration in checkpoints:
            _halve(state, checkpoints[iteration])
        if iteration in checkpoints and iteration >= _PATIENCE:
            hopeful = _hopeful(state, (steps - iteration) / _half(checkpoints[iteration]))
            hunt.keep(hopeful)
            state = state.select(hopeful)
            if not hopeful.any():
                break
        _advance(state, norm, momentum=_MOMENTUM if iteration else 1.0)
    return hunt.found, hunt.points


def _checkpoints(steps: int) -> dict[int, int]:
    """Return the iterations at which the step size is looked at, each with the steps since the one before.

    >>> _checkpoints(100)
    {22: 22, 41: 19, 57: 16, 70: 13, 80: 10, 87: 7, 93: 6, 99: 6}
    """
    window, least, less = (max(int(share * steps), 1) for share in (0.22, 0.06, 0.03))
    result, at = {}, window
    while at <= steps:
        result[at] = window
        window = max(window - less, least)
        at += window
    return result


def _remember(state: _State, value: Tensor) -> None:
    """Count the rise, and keep the point and its gradient where the loss is the best so far."""
    better = value > state.best
    where = ball.column(better, state.x)
    state.rises = state.rises + (value > state.last)
    state.last = value
    state.best = torch.where(better, value, state.best)
    state.best_point = torch.where(where, state.point, state.best_point)
    state.best_gradient = torch.where(where, state.gradient, state.best_gradient)


def _halve(state: _State, window: int) -> None:
    """Halve the step and go back to the best point where the loss oscillates or nothing better was found."""
    stuck = ~state.reduced & (state.checked >= state.best)
    halve = (state.rises <= _RISES * window) | stuck
    where = ball.column(halve, state.x)
    state.step = torch.where(halve, state.step / 2, state.step)
    state.point = torch.where(where, state.best_point, state.point)
    state.gradient = torch.where(where, state.best_gradient, state.gradient)
    state.rises, state.checked, state.reduced = torch.zeros_like(state.rises), state.best, halve


def _half(window: int) -> int:
    return max(window // 2, 1)


def _hopeful(state: _State, remaining: float) -> Tensor:
    """Say which runs may still get there; `remaining` is what is left of them, in half windows."""
    expected = state.best + _OPTIMISM * remaining * (state.best - state.midway)
    return expected > _SHORTFALL * state.first


def _advance(state: _State, norm: float, momentum: float) -> None:
    """Step along the gradient's direction, project, mix with the last move, project again.

    From a point where the model has no finite answer, go halfway back to the best one that has (x at first).
    """
    x, point, eps = state.x, state.point, state.eps
    stride = ball.column(state.step, x)
    ahead = ball.project(point + stride * ball.direction(state.gradient, point, norm), x, eps, norm)
    mixed = point + momentum * (ahead - point) + (1 - momentum) * (point - state.previous)
    lost, halfway = ball.column(state.last.isneginf(), x), (point + state.best_point) / 2
    state.previous = torch.where(lost, halfway, point)
    state.point = ball.project(torch.where(lost, halfway, mixed), x, eps, norm)

"""Projected gradient descent (Madry et al. 2018) and its one-step form, FGSM (Goodfellow et al. 2015)."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from lowcurve.attacks import ball, randomness
from lowcurve.attacks.losses import ascent, finite_logits, misclassified
from lowcurve.attacks.trials import Hunt, first_success
from lowcurve.errors import UserError
from lowcurve.objectives.cross_entropy import log_odds_against

Loss = Callable[[Tensor, Tensor], Tensor]


def projected_gradient(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    eps: Tensor,
    *,
    norm: float,
    steps: int,
    restarts: int,
    seed: int,
    loss: Loss = log_odds_against,
) -> Tensor:
    """Climb `loss` from a random start, projecting after each step; step k of n is 2 ε (1 - k/n) long.

    The loss is the logarithm of the odds against y: the cross-entropy is its softplus, so both have the same normalized
    gradient and the same order, but the odds do not vanish in floating point at samples that the model is sure of.
    The first steps cross the ball and the last ones settle; no single length does both, and 2.5 ε/n, the usual
    one, leaves ℓ₂ runs some degrees from the best point of the sphere even where the model is linear.
    """
    key = randomness.keys(x, seed)
    lengths = [2 * (1 - step / steps) for step in range(steps)]

    def run(rows: Tensor, trial: Tensor) -> tuple[Tensor, Tensor]:
        start = ball.random_start(randomness.derive_keys(key[rows], trial), x[rows], eps[rows], norm)
        return _climb(model, start, x[rows], y[rows], eps[rows], norm, lengths, loss)

    return first_success(x, restarts, run)


def fgsm(
    model: nn.Module, x: Tensor, y: Tensor, eps: Tensor, *, norm: float, steps: int, restarts: int, seed: int
) -> Tensor:
    """Take one step of length ε from x itself; without randomness, `restarts` and `seed` change nothing."""
    if steps != 1:
        raise UserError(f"expected one step of fgsm, got {steps}; for more use pgd")

    def run(rows: Tensor, trial: Tensor) -> tuple[Tensor, Tensor]:
        return _climb(model, x[rows], x[rows], y[rows], eps[rows], norm, [1.0], log_odds_against)

    return first_success(x, 1, run)


def _climb(
    model: nn.Module,
    point: Tensor,
    x: Tensor,
    y: Tensor,
    eps: Tensor,
    norm: float,
    lengths: Sequence[float],
    loss: Loss,
) -> tuple[Tensor, Tensor]:
    """Take steps of these lengths, in units of ε, until broken; return which rows were, and where."""
    hunt = Hunt(x)
    for length in (*lengths, None):
        logits, _, gradient = ascent(model, point, loss, y)
        broken = misclassified(logits, y)
        if broken.any():
            hunt.leave(broken, point)
            point, x, y, eps, gradient, logits = hunt.keep(~broken, point, x, y, eps, gradient, logits)
        if length is None or not len(x):
            break
        stride = ball.column(length * eps, x)
        ahead = point + stride * ball.direction(gradient, point, norm)
        back = (x + point) / 2  # from a point without an answer, towards one that has it
        point = ball.project(torch.where(ball.column(finite_logits(logits), x), ahead, back), x, eps, norm)
    return hunt.found, hunt.points

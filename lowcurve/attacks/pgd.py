"""Projected gradient descent (Madry et al. 2018) and its one-step form, FGSM (Goodfellow et al. 2015)."""

from collections.abc import Callable

from torch import Tensor, nn

from lowcurve.attacks import ball, streams
from lowcurve.attacks.losses import ascent, cross_entropy
from lowcurve.attacks.trials import Hunt, sweep

Loss = Callable[[Tensor, Tensor], Tensor]

_OVERSHOOT = 2.5  # the steps together are this many radii long, so that the sphere is reached from any start


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
    loss: Loss = cross_entropy,
) -> Tensor:
    """Climb `loss` in `steps` steps of length 2.5 ε / steps from a random start, projecting after each."""
    key = streams.keys(x, seed)

    def run(rows: Tensor, trial: Tensor) -> tuple[Tensor, Tensor]:
        start = ball.random_start(streams.fold(key[rows], trial), x[rows], eps[rows], norm)
        return _climb(model, start, x[rows], y[rows], eps[rows], norm, steps, _OVERSHOOT / steps, loss)

    return sweep(x, restarts, run)


def fgsm(
    model: nn.Module, x: Tensor, y: Tensor, eps: Tensor, *, norm: float, steps: int, restarts: int, seed: int
) -> Tensor:
    """Take one step of length ε from x itself; without randomness, `restarts` and `seed` change nothing."""

    def run(rows: Tensor, trial: Tensor) -> tuple[Tensor, Tensor]:
        return _climb(model, x[rows], x[rows], y[rows], eps[rows], norm, 1, 1.0, cross_entropy)

    return sweep(x, 1, run)


def _climb(
    model: nn.Module,
    point: Tensor,
    x: Tensor,
    y: Tensor,
    eps: Tensor,
    norm: float,
    steps: int,
    rate: float,
    loss: Loss,
) -> tuple[Tensor, Tensor]:
    """Step by `rate`·ε along the gradient's direction until broken; return which rows were, and where."""
    hunt = Hunt(x)
    for step in range(steps + 1):
        logits, _, gradient = ascent(model, point, loss, y)
        broken = logits.argmax(1) != y
        if broken.any():
            hunt.leave(broken, point)
            point, x, y, eps, gradient = hunt.keep(~broken, point, x, y, eps, gradient)
        if step == steps or not len(x):
            break
        stride = ball.column(rate * eps, x)
        point = ball.project(point + stride * ball.direction(gradient, point, norm), x, eps, norm)
    return hunt.found, hunt.points

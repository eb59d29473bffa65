"""Several attacks as one: each is given the samples that those before it have left."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lowcurve.attacks.losses import misclassified


@dataclass(frozen=True)
class Member:
    """An attack of a suite, and its steps for each step of the suite."""

    run: Callable[..., Tensor]
    share: float


def in_turn(
    members: Sequence[Member],
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    eps: Tensor,
    *,
    norm: float,
    steps: int,
    restarts: int,
    seed: int,
) -> Tensor:
    """Run one attack after the other on the samples that are still classified as y."""
    points = x.clone()
    left = torch.arange(len(x), device=x.device)
    for member in members:
        if not len(left):
            break
        budget = max(round(steps * member.share), 1)
        found = member.run(model, x[left], y[left], eps[left], norm=norm, steps=budget, restarts=restarts, seed=seed)
        points[left] = found
        with torch.no_grad():
            left = left[~misclassified(model(found), y[left])]
    return points

"""Who is still in the hunt? Broken samples leave the batch; trials (restarts, targets) go to the others."""

from collections.abc import Callable

import torch
from torch import Tensor

Trial = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


class Hunt:
    """The rows of a batch that are still unbroken, and the points that broke the others."""

    def __init__(self, x: Tensor) -> None:
        self.points = x.clone()
        self.found = torch.zeros(len(x), dtype=torch.bool, device=x.device)
        self.rows = torch.arange(len(x), device=x.device)

    def leave(self, broken: Tensor, points: Tensor) -> None:
        """Record the points that broke their rows; `broken` and `points` run over the rows still here."""
        rows = self.rows[broken]
        self.found[rows] = True
        self.points[rows] = points[broken]

    def keep(self, mask: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        """Go on with the rows of `mask` only, and return the same rows of every tensor of `state`."""
        self.rows = self.rows[mask]
        return tuple(tensor[mask] for tensor in state)


def first_success(x: Tensor, trials: int, run: Trial) -> Tensor:
    """Give each sample up to `trials` trials and return what the first one that broke it found, else `x`.

    `run(rows, trial)` attacks sample rows[k] in trial trial[k] and says for each k whether it was broken, and
    the point. As samples drop out, several trials of the remaining ones share a batch, which never outgrows
    len(x); the lowest trial counts, so the result is that of one trial after the other.
    """
    adversarial = x.clone()
    remaining = torch.arange(len(x), device=x.device)
    first = 0
    while first < trials and len(remaining):
        together = min(trials - first, len(x) // len(remaining))
        trial = torch.arange(first, first + together, device=x.device).repeat_interleave(len(remaining))
        found, points = run(remaining.repeat(together), trial)
        by_trial = list(zip(found.chunk(together), points.chunk(together), strict=True))
        for hit, point in reversed(by_trial):
            adversarial[remaining[hit]] = point[hit]
        remaining = remaining[~found.view(together, -1).any(0)]
        first += together
    return adversarial

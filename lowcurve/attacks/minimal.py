"""How far is the nearest mistake? An upper estimate per sample, by bisection on the radius of an attack."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lowcurve.attacks import attack, ball, verify
from lowcurve.errors import UserError

_FIRST = 1 / 256  # of the box's diameter: the first radius that is tried


@dataclass(frozen=True)
class MinimalNorm:
    """The nearest misclassified points found.

    `distance` is an upper bound on the distance to the nearest mistake (infinite where none was found, 0 where
    the sample itself is one), reached at `adversarial`. `withstood` is the largest radius below it at which the
    attack failed: evidence, not proof; for proof see `lowcurve.certify`.
    """

    distance: Tensor
    adversarial: Tensor
    withstood: Tensor


def minimal_norm(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    norm: float = 2,
    name: str = "apgd-t",
    steps: int | None = None,
    tolerance: float = 0.01,
    seed: int = 0,
) -> MinimalNorm:
    """Double the radius until attack `name` succeeds, then halve the bracket to `tolerance` relative to it.

    >>> model = nn.Linear(2, 2, bias=False)
    >>> _ = model.weight.data.copy_(torch.eye(2))
    >>> found = minimal_norm(model, torch.tensor([[0.9, 0.5]]), torch.tensor([0]))  # truth: 0.4/√2 = 0.2828
    >>> bool((found.distance - 0.2828).abs() < 0.003)
    True
    """
    if not 0 < tolerance < 1:
        raise UserError(f"expected a tolerance between 0 and 1, got {tolerance}")
    verify.check_inputs(x, y)
    norm = verify.check_norm(norm)
    widest = verify.diameter(x, norm)
    low = torch.zeros(len(x), dtype=x.dtype, device=x.device)
    high = torch.full_like(low, torch.inf)
    adversarial, trial = x.clone(), low.clone()
    searching = torch.ones_like(y, dtype=torch.bool)
    while searching.any():
        found = attack(model, x[searching], y[searching], name, eps=trial[searching], norm=norm, steps=steps, seed=seed)
        reached = torch.full_like(high, torch.inf)
        away = ball.distance(found.adversarial, x[searching], norm).to(x.dtype)
        reached[searching] = away.masked_fill(~found.success, torch.inf)
        better = reached < high
        low = torch.where(searching & ~better, trial, low)
        high = torch.where(better, reached, high)
        adversarial[better] = found.adversarial[better[searching]]
        trial = _next(low, high, widest)
        halved = (trial > low) & (trial < high)  # down to the smallest number that there is
        searching = (low < (1 - tolerance) * high) & (low < widest) & halved
    return MinimalNorm(high, adversarial, low)


def _next(low: Tensor, high: Tensor, widest: float) -> Tensor:
    """Return the radii to try: twice the last while none succeeded, then the middle of the bracket."""
    doubled = (2 * low).clamp(_FIRST * widest, widest)
    middle = torch.where(low > 0, (low + high) / 2, high / 2)
    return torch.where(high.isinf(), doubled, middle)

r"""How much can the gradient of the cross-entropy change in a ball? Its linear part bends, and the softmax moves.

With p = softmax(z), π = p − e_y and J the Jacobian of the logits, ∇ℓ = Jᵀπ. From x to x + δ (with a prime)

.. math:: ∇ℓ' - ∇ℓ = (J' - J)^T π + J'^T (p' - p).

The first term is the change of a linear function of the logits whose coefficients π are those at x. In the second
p' − p sums to 0 and so is T = ½‖p' − p‖₁ times an average of differences e_a − e_b: its norm is at most T·S with S the
steepest z_a − z_b in the ball. If no z_a − z_b moves by more than D, the log-odds of every set of classes move by at
most D; with a₀ the log-odds against the likeliest class at x

.. math:: T ≤ σ(t + D) - σ(t), \qquad t = \min(a_0, -D/2), \qquad σ(t) = 1/(1 + e^{-t}).
"""

import torch
from torch import Tensor

from lowcurve.guarantees.arithmetic import FLOAT64, Arithmetic
from lowcurve.guarantees.expansion import Expansion
from lowcurve.guarantees.network import Network
from lowcurve.guarantees.operator_norm import SLACK
from lowcurve.guarantees.rounding import Error
from lowcurve.guarantees.steps import Reach
from lowcurve.objectives.cross_entropy import log_odds_against


class LossTurn:
    """The cross-entropy seen from x: `outputs` are its linear part π·z / (1 − p_y), then all margins z_y − z_c.

    The division, by `scale`, keeps the size of what is computed where the network is sure.
    """

    def __init__(self, net: Network, y: Tensor, logits: Tensor) -> None:
        own = torch.zeros_like(logits, dtype=torch.bool).scatter_(1, y.view(-1, 1), True)
        self.net, self.y = net, y
        self.pull = torch.softmax(logits.masked_fill(own, -torch.inf), 1).masked_fill(own, -1.0)
        self.against = log_odds_against(logits, y)
        self.scale = torch.sigmoid(self.against)
        self.unsure = log_odds_against(logits, logits.argmax(1))

    def outputs(self, logits: Tensor) -> Tensor:
        """Return (N, 1 + C) linear functions of the logits."""
        linear = (self.pull * logits).sum(1, keepdim=True)
        return torch.cat([linear, logits.gather(1, self.y.view(-1, 1)) - logits], 1)

    def change(
        self, at: Expansion, bend: Tensor, reaches: list[Reach], radius: Tensor, error: Error, executed_in: Arithmetic
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return, (N,) each, the change of ∇ℓ, a bound on the computed 1 − p_y, and what the rounding of π does to ∇ℓ.

        `bend` are the K of the outputs, `error` that of the logits in the arithmetic of the model. Computed p_c, c ≠ y,
        are off by a factor at most; their sum −π_y is off by a few units more.
        """
        slope, move = self._pairs(at, bend[:, 1:], reaches, radius)
        moved = move.amax((1, 2)) * SLACK + 2 * at.blur
        wrong = torch.sigmoid(self.against + 2 * at.blur + moved) * SLACK  # 1 − p_y anywhere in the ball
        change = radius * bend[:, 0] * self.scale
        change = change + _shift(self.unsure + 2 * at.blur, moved) * slope.amax((1, 2)) * SLACK
        own = slope.gather(1, self.y.view(-1, 1, 1).expand(-1, 1, slope.shape[2])).amax((1, 2))
        change = torch.fmin(change, at.gradient_norms[:, 0] * self.scale + wrong * own)
        factor = self._factor(at, reaches, radius, error, executed_in)
        unit = (executed_in.unit + FLOAT64.unit) * (bend.shape[1] + 8)
        doubt = wrong * (2 * factor * own + unit * (1 + factor) * reaches[-1].lipschitz) * SLACK
        return change, wrong * (1 + factor), torch.where(doubt.isnan(), torch.inf, doubt)

    def _pairs(self, at: Expansion, bend: Tensor, reaches: list[Reach], radius: Tensor) -> tuple[Tensor, Tensor]:
        """Bound slopes and moves of z_a − z_b in the ball, (N, C, C)."""
        _, position = self.net.head()
        rows = reaches[-1].rows
        steepest = self.net.row_distances(2.0) * reaches[position].lipschitz.view(-1, 1, 1)
        steepest = torch.fmin(steepest, rows.unsqueeze(1) + rows.unsqueeze(2))
        margins = at.gradients[:, 1:]
        here = torch.cdist(margins, margins, compute_mode="donot_use_mm_for_euclid_dist") * SLACK
        here = here + 2 * at.doubt.view(-1, 1, 1)
        turned = (bend.unsqueeze(1) + bend.unsqueeze(2)) * radius.view(-1, 1, 1)
        move = radius.view(-1, 1, 1) * torch.fmin(here + turned / 2, steepest)
        return torch.fmin(here + turned, steepest) * SLACK, move * SLACK

    def _factor(
        self, at: Expansion, reaches: list[Reach], radius: Tensor, error: Error, executed_in: Arithmetic
    ) -> Tensor:
        """Bound the relative error of every computed p_c, c ≠ y, in the ball: exponents are off, and sums of them."""
        sizes = at.values[-1].abs() + reaches[-1].rows * radius.view(-1, 1) + error.parts
        unit = (executed_in.unit + FLOAT64.unit) * (8 * sizes.amax(1) + sizes.shape[1] + 64)
        return torch.expm1(2 * error.parts.amax(1) + 2 * at.blur + unit)


def _shift(odds: Tensor, moved: Tensor) -> Tensor:
    """Return σ(t + D) − σ(t) with t = min(a₀, −D/2), without cancellation.

    >>> _shift(torch.tensor(5.0), torch.tensor(2.0)) == torch.tanh(torch.tensor(0.5))
    tensor(True)
    """
    low = torch.minimum(odds, -moved / 2)
    return torch.sigmoid(low + moved) * torch.sigmoid(-low) * -torch.expm1(-moved)

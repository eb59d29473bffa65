r"""What does a network minimize that wants large certified radii? Cross-entropy of distances instead of logits.

A margin m = z_y − z_c says little about robustness before it is divided by its slope: to first order the decision
boundary is m / ‖∇ₓm‖ away, and where slopes are as good as constant (low curvature) that is the certified radius.
So every logit is divided by the slope of the sample's smallest margin, and multiplied by a sharpness κ,

.. math:: ℓ = \mathrm{CE}\!\left(κ \, z / ‖∇_x m‖_2, y\right), \qquad m = z_y - \max_{c≠y} z_c,

which is blind to the scale of the logits. Radii well above 1/κ (in pixels) count as safe: a small κ gives up samples
near the boundary for larger radii elsewhere, a large one the reverse.
"""

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from lowcurve.objectives.term import Term


def logits_over_slope(logits: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return z / ‖∇ₓm‖₂, differentiable, of shape (N, C); `logits` were computed from `x`, which needs a gradient.

    >>> x = torch.tensor([[1.0, 0.0]], requires_grad=True)
    >>> distances = logits_over_slope(x * 3.0, x, torch.tensor([0]))  # boundary x₀ = x₁, 1/√2 away
    >>> round(float(distances[0, 0] - distances[0, 1]), 4)
    0.7071
    """
    label = y.view(-1, 1)
    others = logits.detach().scatter(1, label, -torch.inf).argmax(1, keepdim=True)
    margins = logits.gather(1, label) - logits.gather(1, others)
    (gradient,) = torch.autograd.grad(margins.sum(), x, create_graph=True)
    slopes = gradient.flatten(1).norm(dim=1, keepdim=True)
    return logits / slopes.clamp_min(torch.finfo(slopes.dtype).tiny ** 0.5)


class BoundaryDistances(Term):
    """Gives cross-entropy κ times the distances instead of the logits."""

    sharpness: float = Field(default=6.0, gt=0, description="certified: 1/radius that counts as safe, per pixel")

    input_gradients: ClassVar[bool] = True

    def change_scores(self, scores: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """κ z / ‖∇ₓm‖."""
        return self.sharpness * logits_over_slope(scores, x, y)

r"""What does a network of known slope minimize? Cross-entropy with an offset that a label has to make up for.

.. math:: ℓ = \mathrm{CE}\left((z - o \, e_y) / t, \; y\right)

with a temperature t and an offset o in units of the logits. Where every margin has slope at most L, a logit that leads
by o is certified within o/L: the loss asks for such a lead, and t says how much more is worth having. It makes sense
only where the scale of the logits is bounded, as spectral norm does, or the offset is made up for by a larger scale.
"""

import torch
from pydantic import Field
from torch import Tensor

from lowcurve.objectives.term import Term


class LabelOffset(Term):
    """Gives cross-entropy (z − o e_y) / t instead of the logits z."""

    offset: float = Field(default=0.25, ge=0, description="margin: lead that a label has to make up for, in logits")
    temperature: float = Field(default=0.75, gt=0, description="margin: what logits are divided by")

    def change_scores(self, scores: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """(z − o e_y) / t.

        >>> LabelOffset(offset=1.0, temperature=0.5).change_scores(torch.zeros(1, 3), None, torch.tensor([1]))
        tensor([[ 0., -2.,  0.]])
        """
        lead = torch.full_like(y.view(-1, 1), -self.offset, dtype=scores.dtype)
        return scores.scatter_add(1, y.view(-1, 1), lead) / self.temperature

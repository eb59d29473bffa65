r"""How far does a margin reach, given its slope, its curvature and its steepest slope? The formula behind certificates.

At distance t from x the margin m is at least m − g t − K t²/2, and from any point on it falls no faster than L. The
best of both is ∫₀ᵗ min(g + K s, L) ds, and the answer is safe until that has used m up:

.. math:: r = \frac{2m}{g + \sqrt{g^2 + 2Km}} \text{ while } r ≤ t_0 = \frac{L-g}{K},
          \text{ afterwards } t_0 + \frac{m - g t_0 - K t_0^2/2}{L}.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

_BELOW = 1 - 1e-6  # radii are rounded down: the last operations may have rounded up
_FARTHEST = 1e6  # no radius is larger


@dataclass(frozen=True)
class Margins:
    """The margins z_y − z_c of N samples, ‖∇‖ at x, and bounds K and L; all (N, C), `own` marks c = y."""

    margins: Tensor
    gradient: Tensor
    hessian: Tensor
    lipschitz: Tensor
    own: Tensor

    def radius(self, lost: Tensor) -> Tensor:
        """Return the radius of each sample where `lost`, (N, C), is taken off its margins."""
        margins = self.margins - lost
        return self.smallest(combined_radius(margins, self.gradient, self.hessian, self.lipschitz))

    def lipschitz_radius(self, lost: Tensor) -> Tensor:
        """Return the radius m/L, without a look at slopes and curvature."""
        return self.smallest((self.margins - lost) / self.lipschitz)

    def smallest(self, radii: Tensor) -> Tensor:
        """The smallest radius over the other classes, rounded down; 0 where a margin is not a positive number."""
        radii = torch.where(radii > 0, radii, 0.0).masked_fill(self.own, torch.inf)
        return (radii.amin(1) * _BELOW).clamp_max(_FARTHEST)


def combined_radius(margin: Tensor, gradient: Tensor, hessian: Tensor, lipschitz: Tensor) -> Tensor:
    """Return the t at which ∫₀ᵗ min(g + K s, L) ds = m, elementwise; K may be infinite, m below 0 gives 0.

    >>> one = torch.tensor(1.0)
    >>> float(combined_radius(one, 0 * one, 2 * one, 100 * one))
    1.0
    >>> float(combined_radius(one, one, torch.inf * one, 2 * one))
    0.5
    """
    margin = margin.clamp_min(0)
    gradient = torch.minimum(gradient, lipschitz)
    smooth = hessian.isfinite()
    k = torch.where(smooth, hessian, 1.0)
    until = (lipschitz - gradient) / k  # where the slope bound g + K t meets L; division by 0 means never
    until = torch.where(smooth, torch.where(k > 0, until, torch.inf), 0.0)
    quadratic = 2 * margin / (gradient + torch.hypot(gradient, (2 * k).sqrt() * margin.sqrt()))
    reached = torch.where(until.isfinite(), until, 0.0)
    beyond = reached + (margin - gradient * reached - torch.where(smooth, k, 0.0) * reached.square() / 2) / lipschitz
    radius = torch.where(smooth & (quadratic <= until), quadratic, beyond)
    return torch.where(margin > 0, radius, 0.0)

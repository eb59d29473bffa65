r"""Centered softplus: what activation has trainable curvature, and a value at 0 that stays at 0?

.. math:: s_0(x; β) = \frac{1}{β} \log \frac{1 + e^{βx}}{2},  \qquad s_0' = σ(βx),  \qquad s_0'' = β σ (1 - σ) ≤ β / 4

with σ the logistic function: x/2 for β → 0, ReLU for β → ∞ (Srinivas et al. 2022, §3.3).
"""

import math

import torch
from torch import Tensor, nn

from lowcurve import checks
from lowcurve.kernels.engine import bounded_exp
from lowcurve.kernels.softplus import centered_softplus
from lowcurve.layers.traits import (
    Constants,
    Learned,
    constants,
    constants_between,
    learned,
    softplus_between,
    softplus_constants,
)


class CenteredSoftplus(nn.Module):
    r"""Elementwise :math:`s_0(x; β) = \frac{1}{β}\log\frac{1 + e^{βx}}{2}` with one learnable β > 0 per layer.

    β is kept as its logarithm, `log_beta`. The layer has slope in (0, 1) and curvature at most β/4.

    >>> layer = CenteredSoftplus(init_beta=1.0)
    >>> layer(torch.tensor([0.0, -math.inf, 100.0])).tolist()  # 0, -log 2, 100 - log 2
    [0.0, -0.6931471824645996, 99.30685424804688]
    """

    def __init__(self, init_beta: float = 5.0) -> None:
        super().__init__()
        checks.number(above=0, init_beta=init_beta)
        self.log_beta = nn.Parameter(torch.tensor(math.log(init_beta)))

    @property
    def beta(self) -> Tensor:
        """The sharpness β, a 0-dimensional tensor."""
        return bounded_exp(self.log_beta)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the activation elementwise, in the input's dtype."""
        return centered_softplus(x, self.log_beta)

    def extra_repr(self) -> str:
        """Show β."""
        return f"beta={float(self.log_beta.detach().exp()):.4g}"


@learned.register
def _learned(module: CenteredSoftplus) -> tuple[Learned, ...]:
    return (Learned("beta", module.log_beta),)


@constants.register
def _constants(module: CenteredSoftplus) -> Constants:
    return softplus_constants(float(module.beta.detach()))


@constants_between.register
def _constants_between(module: CenteredSoftplus, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    return softplus_between(float(module.beta.detach()), low, high)

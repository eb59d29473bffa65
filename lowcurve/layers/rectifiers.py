"""Rectifiers with a leak or a cap and trainable curvature: what do LeakyReLU, ReLU6 and Hardtanh become?"""

from torch import Tensor, nn

from lowcurve.errors import UserError
from lowcurve.layers.softplus import CenteredSoftplus
from lowcurve.layers.traits import (
    Constants,
    constants,
    constants_between,
    finite,
    smooth,
    softplus_between,
    softplus_constants,
)


class LeakyCenteredSoftplus(nn.Module):
    """x ↦ a x + (1 - a) s₀(x; β): LeakyReLU with negative slope a for β → ∞, slope in (a, 1), curvature (1 - a) β/4.

    >>> import torch
    >>> layer = LeakyCenteredSoftplus(0.1, init_beta=1e4)
    >>> [round(value, 3) for value in layer(torch.tensor([-1.0, 0.0, 1.0])).tolist()]
    [-0.1, 0.0, 1.0]
    """

    def __init__(self, negative_slope: float = 0.01, init_beta: float = 5.0) -> None:
        super().__init__()
        if not 0 <= negative_slope <= 1:
            raise UserError(f"expected a negative_slope in [0, 1], got {negative_slope}; use one in that range")
        self.negative_slope = negative_slope
        self.softplus = CenteredSoftplus(init_beta)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the activation elementwise."""
        return self.negative_slope * x + (1 - self.negative_slope) * self.softplus(x)

    def extra_repr(self) -> str:
        """Show the slope."""
        return f"negative_slope={self.negative_slope:g}"


class SmoothClip(nn.Module):
    """x ↦ low + s₀(x - low; β) - s₀(x - high; β): Hardtanh for β → ∞, values in (low, high) for every β.

    The slope σ(β(x - low)) - σ(β(x - high)) is in (0, 1) and the curvature at most β/4.

    >>> import torch
    >>> layer = SmoothClip(0.0, 6.0, init_beta=1e4)
    >>> [round(value, 3) for value in layer(torch.tensor([-1.0, 2.0, 9.0])).tolist()]
    [0.0, 2.0, 6.0]
    """

    def __init__(self, low: float, high: float, init_beta: float = 5.0) -> None:
        super().__init__()
        self.low, self.high = low, high
        self.softplus = CenteredSoftplus(init_beta)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the activation elementwise."""
        return self.low + self.softplus(x - self.low) - self.softplus(x - self.high)

    def extra_repr(self) -> str:
        """Show the limits."""
        return f"low={self.low:g}, high={self.high:g}"


@smooth.register(LeakyCenteredSoftplus)
@smooth.register(SmoothClip)
def _smooth(module: nn.Module) -> bool:
    return True


@constants.register
def _leaky_constants(module: LeakyCenteredSoftplus) -> Constants:
    return softplus_constants(float(module.softplus.beta.detach()), module.negative_slope)


@constants_between.register
def _leaky_between(module: LeakyCenteredSoftplus, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    return softplus_between(float(module.softplus.beta.detach()), low, high, module.negative_slope)


@constants.register
def _clip_constants(module: SmoothClip) -> Constants:
    core = softplus_constants(float(module.softplus.beta.detach()))
    ends = abs(finite(module.low)) + abs(finite(module.high))
    rises = module.low <= module.high  # s' is a difference of two in [0, 1], s'' of two in [0, β/4]
    return Constants(1.0, core.curvature, width=core.width + ends, increasing=rises)

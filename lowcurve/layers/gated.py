r"""GELU, SiLU and Mish with trainable curvature: how does a network that is smooth already learn to be smoother?

.. math:: a(x; β) = a(βx) / β, \qquad a' = a'(βx), \qquad a'' = β a''(βx)

with a = xΦ(x) (GELU, Φ the normal distribution function), xσ(x) (SiLU, σ the logistic function) or x tanh log(1 + eˣ)
(Mish): a line for β → 0, the plain activation for β = 1, ReLU for β → ∞. So β does what it does in a centered softplus:
it scales curvature, and leaves slopes as they are.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lowcurve import checks
from lowcurve.errors import UserError
from lowcurve.kernels.engine import bounded_exp
from lowcurve.layers.traits import Constants, Learned, constants, learned, plain

GATED_BETA_RANGE = (1e-6, 1e6)  # beyond them βx and 1/β may leave the range of numbers


class _Gated(nn.Module):
    """x ↦ a(βx)/β with one learnable β > 0 per layer, kept as its logarithm."""

    def __init__(self, init_beta: float = 1.0) -> None:
        super().__init__()
        checks.number(above=0, init_beta=init_beta)
        self.log_beta = nn.Parameter(torch.tensor(math.log(init_beta)))

    @property
    def beta(self) -> Tensor:
        """The sharpness β, a 0-dimensional tensor."""
        return bounded_exp(self.log_beta)

    def plain_form(self) -> nn.Module:
        """Return the activation at β = 1 as PyTorch has it."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        """Show β."""
        return f"beta={float(self.log_beta.detach().exp()):.4g}"


class LearnedGELU(_Gated):
    """x ↦ xΦ(βx): slope below 1.13, curvature at most 0.8 β; `approximate` is that of `nn.GELU`.

    >>> layer = LearnedGELU()
    >>> x = torch.linspace(-3, 3, 7)
    >>> bool(torch.equal(layer(x), F.gelu(x)))
    True
    """

    def __init__(self, init_beta: float = 1.0, approximate: str = "none") -> None:
        super().__init__(init_beta)
        checks.choice(("none", "tanh"), approximate=approximate)
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        """Apply the activation elementwise, in the input's dtype."""
        beta = self.beta.to(x.dtype)
        return F.gelu(beta * x, approximate=self.approximate) / beta

    def plain_form(self) -> nn.Module:
        """GELU."""
        return nn.GELU(approximate=self.approximate)


class LearnedSiLU(_Gated):
    """x ↦ xσ(βx): slope below 1.1, curvature at most β/2.

    >>> layer = LearnedSiLU(init_beta=1e4)
    >>> [round(value, 3) for value in layer(torch.tensor([0.0, 1.0, 2.0])).tolist()]
    [0.0, 1.0, 2.0]
    """

    def forward(self, x: Tensor) -> Tensor:
        """Apply the activation elementwise, in the input's dtype."""
        beta = self.beta.to(x.dtype)
        return F.silu(beta * x) / beta

    def plain_form(self) -> nn.Module:
        """SiLU."""
        return nn.SiLU()


class LearnedMish(_Gated):
    """x ↦ a(βx)/β with a the Mish activation."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply the activation elementwise, in the input's dtype."""
        beta = self.beta.to(x.dtype)
        return F.mish(beta * x) / beta

    def plain_form(self) -> nn.Module:
        """Mish."""
        return nn.Mish()


@learned.register
def _learned(module: _Gated) -> tuple[Learned, ...]:
    return (Learned("beta", module.log_beta),)


@constants.register(LearnedGELU)
@constants.register(LearnedSiLU)
def _constants(module: _Gated) -> Constants:
    known, beta = constants(module.plain_form()), float(module.beta.detach())
    assert known is not None
    low, high = GATED_BETA_RANGE
    if not low <= beta <= high:
        raise UserError(f"expected an activation with β from {low:g} to {high:g}, got {beta:g}; use such a β")
    return Constants(known.lipschitz, beta * known.curvature, width=1e-20)  # where βx is no normal number


class _PlainGated(nn.Module):
    """a(βx)/β with β a number."""

    def __init__(self, activation: nn.Module, beta: float) -> None:
        super().__init__()
        self.activation, self.beta = activation, beta

    def forward(self, x: Tensor) -> Tensor:
        """Apply the activation elementwise."""
        return self.activation(self.beta * x) / self.beta


@plain.register(LearnedGELU)
@plain.register(LearnedSiLU)
@plain.register(LearnedMish)
def _plain(module: _Gated) -> nn.Module:
    return _PlainGated(module.plain_form(), float(module.beta.detach()))

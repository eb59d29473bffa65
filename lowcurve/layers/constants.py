"""How steep and how bent can each layer be? The one table of constants that penalties, bounds and docs share.

For an elementwise activation s: the Lipschitz constant a = sup |s'| and the curvature b = sup |s''|, both over
the real line. b = ∞ where s' jumps (ReLU): then no Hessian bound exists.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lowcurve.layers.batchnorm import LipschitzBatchNorm1d, LipschitzBatchNorm2d
from lowcurve.layers.rectifiers import LeakyCenteredSoftplus, SmoothClip
from lowcurve.layers.softplus import CenteredSoftplus


@dataclass(frozen=True)
class Constants:
    """`lipschitz` = sup |s'|, `curvature` = sup |s''| and `relative` ≥ sup |s''/s'| of an activation s.

    `convex` tells where s'' ≥ 0 everywhere.
    """

    lipschitz: float
    curvature: float
    relative: float = math.inf
    convex: bool = False


def softplus_constants(beta: float, leak: float = 0.0) -> Constants:
    """Softplus with sharpness β, centered or not: s' = σ(βx) < 1 and s'' = βσ(βx)(1 − σ(βx)) ≤ β/4.

    With a leak a the activation is a x + (1 − a) s(x), whose slope stays below 1 and whose curvature shrinks.
    """
    return Constants(1.0, (1 - leak) * beta / 4, relative=beta, convex=True)


def elu_constants(alpha: float) -> Constants:
    """Exponential linear unit, s = α(eˣ − 1) for x < 0: s' jumps at 0 unless α = 1."""
    if alpha == 1:
        return Constants(1.0, 1.0, relative=1.0, convex=True)
    return Constants(max(1.0, abs(alpha)), math.inf, convex=0 <= alpha <= 1)


ACTIVATIONS: dict[type[nn.Module], Callable[..., Constants]] = {
    CenteredSoftplus: lambda m: softplus_constants(_beta(m)),
    LeakyCenteredSoftplus: lambda m: softplus_constants(_beta(m.softplus), m.negative_slope),
    SmoothClip: lambda m: Constants(1.0, _beta(m.softplus) / 4),  # s'' is a difference of two in [0, β/4]
    nn.Softplus: lambda m: softplus_constants(_beta(m)),
    nn.ReLU: lambda m: Constants(1.0, math.inf, convex=True),
    nn.LeakyReLU: lambda m: Constants(max(1.0, abs(m.negative_slope)), math.inf, convex=m.negative_slope <= 1),
    nn.ELU: lambda m: elu_constants(float(m.alpha)),
    nn.Tanh: lambda m: Constants(1.0, 4 / math.sqrt(27)),  # s'' = −2 tanh(1 − tanh²), largest at tanh² = 1/3
    nn.Sigmoid: lambda m: Constants(0.25, 1 / math.sqrt(108)),
    nn.SiLU: lambda m: Constants(1.09984, 0.5),  # s' largest at x = 2.3994; s''(0) = 1/2
    nn.GELU: lambda m: Constants(1.13, 0.8),  # s'(√2) = 1.1289, s''(0) = 2φ(0) = 0.7979; the tanh form is within
}


def activation_constants(module: nn.Module) -> Constants | None:
    """Return the constants of an activation, or None when `module` is no activation of the table.

    >>> activation_constants(nn.Softplus(beta=2))
    Constants(lipschitz=1.0, curvature=0.5, relative=2.0, convex=True)
    """
    rule = ACTIVATIONS.get(type(module))  # a subclass may compute something else
    return None if rule is None else rule(module)


def constants_between(module: nn.Module, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Bound (|s'|, s'') of an activation on the intervals [low, high], elementwise.

    For the softplus family s' = σ(βx) increases and s'' = βσ(βx)σ(−βx) falls with |x|, so the end nearest to 0
    has the largest s''. Every other activation gets its global constants.
    """
    leak = module.negative_slope if isinstance(module, LeakyCenteredSoftplus) else 0.0
    core = module.softplus if isinstance(module, LeakyCenteredSoftplus) else module
    if not isinstance(core, CenteredSoftplus | nn.Softplus):
        constants = activation_constants(module)
        assert constants is not None
        return torch.full_like(low, constants.lipschitz), torch.full_like(low, constants.curvature)
    beta = _beta(core)
    nearest = torch.clamp(torch.zeros_like(low), min=low, max=high)
    sigma = torch.sigmoid(beta * nearest)
    return leak + (1 - leak) * torch.sigmoid(beta * high), (1 - leak) * beta * sigma * (1 - sigma)


def log_betas(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return log β of each centered softplus by the layer's name; β is four times its curvature constant."""
    return {name: m.log_beta for name, m in model.named_modules() if isinstance(m, CenteredSoftplus)}


def log_gammas(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return log γ of each Lipschitz batch norm by the layer's name; γ bounds its eval-mode Lipschitz constant."""
    kinds = LipschitzBatchNorm1d | LipschitzBatchNorm2d
    return {name: m.log_gamma for name, m in model.named_modules() if isinstance(m, kinds)}


def _beta(module: CenteredSoftplus | nn.Softplus) -> float:
    return float(module.beta.detach() if isinstance(module, CenteredSoftplus) else module.beta)

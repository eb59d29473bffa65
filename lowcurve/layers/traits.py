"""What do others have to know of a layer? One function per question, which each class answers by registering.

`learned`: which of its parameters decide how smooth it is; these are penalized, logged, and do not decay.
`constants`, `constants_between`: how steep and how bent an activation is, everywhere and on an interval.
`plain`: what stands for it where this package is not installed.
`smooth`: whether surgery has nothing to do on it.

An activation from outside the package is known as well as those inside:

    @learned.register
    def _(module: Mine) -> tuple[Learned, ...]:
        return (Learned("beta", module.log_beta),)
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import singledispatch, update_wrapper
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from lowcurve.errors import UserError


class ByExactType:
    """A function of a module that each class answers for itself alone: a subclass may compute something else."""

    def __init__(self, default: Callable[..., Any]) -> None:
        self._dispatcher = singledispatch(default)
        self.register = self._dispatcher.register
        self.registry: Mapping[Any, Callable[..., Any]] = self._dispatcher.registry
        update_wrapper(self, default)

    def __call__(self, module: nn.Module, *arguments: Any) -> Any:
        """Return the answer of the module's own class, or the default."""
        return self.registry.get(type(module), self.registry[object])(module, *arguments)


class Learned(NamedTuple):
    """A learned number of a layer: "beta" is paid for by its value, "gamma" by its distance from 1, |log γ|.

    `log` is its logarithm (of several at once: any shape), computed from `parameters`, or a parameter itself.
    """

    kind: Literal["beta", "gamma"]
    log: Tensor
    parameters: tuple[nn.Parameter, ...] = ()


@singledispatch
def learned(module: nn.Module) -> tuple[Learned, ...]:
    """Return what `module` itself, not its children, learns of its smoothness: nothing, unless its class says so."""
    return ()


def learned_items(model: nn.Module) -> list[Learned]:
    """Return what all layers of a model learn of their smoothness.

    Every step asks: each class is looked up once.
    """
    answers: dict[type, Callable[[Any], tuple[Learned, ...]]] = {}
    found: list[Learned] = []
    for module in model.modules():
        kind = type(module)
        if kind not in answers:
            answers[kind] = learned.dispatch(kind)
        found += answers[kind](module)
    return found


def learned_logs(model: nn.Module, kind: str) -> dict[str, Tensor]:
    """Return the logarithms of all learned numbers of a kind, by the layer's name.

    >>> from lowcurve.layers.softplus import CenteredSoftplus
    >>> list(learned_logs(nn.Sequential(nn.Flatten(), CenteredSoftplus()), "beta"))
    ['1']
    """
    found: dict[str, Tensor] = {}
    for name, module in model.named_modules():
        logs = [item.log for item in learned(module) if item.kind == kind]
        found |= {name: logs[0]} if len(logs) == 1 else {f"{name}.{kind}{i}": log for i, log in enumerate(logs)}
    return found


def learned_parameters(model: nn.Module) -> set[nn.Parameter]:
    """Return the parameters behind all learned smoothness: weight decay has no business there."""
    behind = (part for item in learned_items(model) for part in (item.parameters or (item.log,)))
    return {part for part in behind if isinstance(part, nn.Parameter)}


@dataclass(frozen=True)
class Constants:
    """`lipschitz` = sup |s'|, `curvature` = sup |s''| and `relative` ≥ sup |s''/s'| of an elementwise activation s.

    All are over the real line; `curvature` is ∞ where s' jumps (ReLU): then no Hessian bound exists. `convex` tells
    whether s'' ≥ 0 everywhere, `increasing` whether s' ≥ 0 is (no: not known to be). `width` and `jump` say how well s
    is computed: in arithmetic of unit roundoff u the value at x is within `ULPS` · u · `lipschitz` · (|x| + `width`) +
    `jump` of s(x).
    """

    lipschitz: float
    curvature: float
    relative: float = math.inf
    convex: bool = False
    width: float = 1.0
    jump: float = 0.0
    increasing: bool = False


ULPS = 32.0  # room for library functions that differ in their last bits between machines
# PyTorch's softplus is x where βx exceeds a threshold: a jump of log(1 + e^{-threshold}) / β, invisible from 20 on.
# Beyond 80 the exponential overflows before the threshold is met.
THRESHOLDS = (20.0, 80.0)
BETA_RANGE = (1e-30, 1e30)


@ByExactType
def constants(module: nn.Module) -> Constants | None:
    """Return the constants of an elementwise activation, or None where its class has registered none.

    Parameters for which there are none (a softplus that jumps or is concave, a slope that is no number) are refused.

    >>> constants(nn.Softplus(beta=2)).curvature
    0.5
    """
    return None


@ByExactType
def constants_between(module: nn.Module, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Bound (|s'|, |s''|) of an activation on the intervals [low, high], elementwise; by default as everywhere."""
    everywhere = constants(module)
    assert everywhere is not None
    return torch.full_like(low, everywhere.lipschitz), torch.full_like(low, everywhere.curvature)


@ByExactType
def plain(module: nn.Module) -> nn.Module | None:
    """Return the eval-mode function of `module`, whose children are plain already, as plain PyTorch.

    None where its class has registered none: it stays as it is, or is written out as the graph of its operations.
    """
    return None


@singledispatch
def smooth(module: nn.Module) -> bool:
    """Whether surgery has nothing to do on a module, whatever it computes inside: what learns its smoothness."""
    return bool(learned(module))


def softplus_constants(beta: float, leak: float = 0.0, jump: float = 0.0) -> Constants:
    """Softplus with sharpness β, centered or not: s' = σ(βx) < 1 and s'' = βσ(βx)(1 − σ(βx)) ≤ β/4.

    With a leak a the activation is a x + (1 − a) s(x), whose slope stays below 1 and whose curvature shrinks.
    """
    low, high = BETA_RANGE
    if not low <= beta <= high:
        raise UserError(f"expected a softplus with β from {low:g} to {high:g}, got {beta:g}; use such a β")
    if not 0 <= leak <= 1:
        raise UserError(f"expected a leaky softplus with a slope in [0, 1], got {leak:g}; use a slope in that range")
    curvature = (1 - leak) * beta / 4
    return Constants(1.0, curvature, relative=beta, convex=True, width=1 / beta, jump=jump, increasing=True)


def softplus_between(beta: float, low: Tensor, high: Tensor, leak: float = 0.0) -> tuple[Tensor, Tensor]:
    """On an interval: s' = σ(βx) increases and s'' = βσ(βx)σ(−βx) falls with |x|, so the end nearest to 0 has most."""
    nearest = torch.clamp(torch.zeros_like(low), min=low, max=high)
    sigma, rest = torch.sigmoid(beta * nearest), torch.sigmoid(-beta * nearest)
    return leak + (1 - leak) * torch.sigmoid(beta * high), (1 - leak) * beta * sigma * rest


def elu_constants(alpha: float) -> Constants:
    """Exponential linear unit, s = α(eˣ − 1) for x < 0: s' jumps at 0 unless α = 1."""
    if alpha == 1:
        return Constants(1.0, 1.0, relative=1.0, convex=True, increasing=True)
    return Constants(max(1.0, abs(finite(alpha))), math.inf, convex=0 <= alpha <= 1, increasing=alpha >= 0)


def finite(value: float) -> float:
    """Return a parameter of an activation, or refuse one that is no number."""
    if not math.isfinite(value):
        raise UserError(f"expected an activation with finite parameters, got {value}; use a number")
    return float(value)


def _softplus(module: nn.Softplus) -> Constants:
    beta, threshold = float(module.beta), float(module.threshold)
    if not THRESHOLDS[0] <= threshold <= THRESHOLDS[1]:
        raise UserError(
            f"expected nn.Softplus with a threshold from {THRESHOLDS[0]:g} to {THRESHOLDS[1]:g}, got {threshold:g}: it "
            "jumps there, or overflows before; use the default threshold of 20"
        )
    return softplus_constants(beta, jump=math.log1p(math.exp(-threshold)) / abs(beta or 1.0))


def _leaky_relu(module: nn.LeakyReLU) -> Constants:
    slope = finite(module.negative_slope)
    return Constants(max(1.0, abs(slope)), math.inf, convex=slope <= 1, width=0.0, increasing=slope >= 0)


# PyTorch's own activations.
_TORCH: Mapping[type[nn.Module], Callable[[Any], Constants]] = MappingProxyType(
    {
        nn.Softplus: _softplus,
        nn.ReLU: lambda m: Constants(1.0, math.inf, convex=True, width=0.0, increasing=True),
        nn.LeakyReLU: _leaky_relu,
        nn.ELU: lambda m: elu_constants(float(m.alpha)),
        # s'' = −2 tanh(1 − tanh²), largest at tanh² = 1/3
        nn.Tanh: lambda m: Constants(1.0, 4 / math.sqrt(27), width=0.0, increasing=True),
        nn.Sigmoid: lambda m: Constants(0.25, 1 / math.sqrt(108), width=4.0, increasing=True),
        nn.SiLU: lambda m: Constants(1.09984, 0.5, width=0.0),  # s' largest at x = 2.3994; s''(0) = 1/2
        nn.GELU: lambda m: Constants(1.13, 0.8, width=0.0),  # s'(√2) = 1.1289, s''(0) = 2φ(0) = 0.7979; tanh: within
    }
)
for _kind, _rule in _TORCH.items():
    constants.register(_kind, _rule)
constants_between.register(nn.Softplus, lambda m, low, high: softplus_between(float(m.beta), low, high))

r"""Centered softplus: what activation has trainable curvature, and a value at 0 that stays at 0?

.. math:: s_0(x; β) = \frac{1}{β} \log \frac{1 + e^{βx}}{2},  \qquad s_0' = σ(βx),  \qquad s_0'' = β σ (1 - σ) ≤ β / 4

with σ the logistic function: x/2 for β → 0, ReLU for β → ∞ (Srinivas et al. 2022, §3.3).

The autograd functions below save the *output* y alone, which the next layer keeps anyway: from it
τ = 1 - e^{-βy} = tanh(βx/2), and so σ = (1 + τ) / 2. The derivative in ρ = log β is (log 2 - H(σ)) / β, where H is
the entropy of a coin with bias σ. Where they apply, the compiled loops of `_softplus.c` do each step in one pass.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from lowcurve import checks
from lowcurve.layers import _loops
from lowcurve.layers.engine import LARGEST_EXPONENT, bounded_exp, needed
from lowcurve.layers.traits import (
    Constants,
    Learned,
    constants,
    constants_between,
    learned,
    softplus_between,
    softplus_constants,
)

# PyTorch's softplus is x where βx is above a threshold. From this one on float32 does not show it.
LEAST_THRESHOLD = 20.0


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


def centered_softplus(x: Tensor, log_beta: Tensor) -> Tensor:
    """Return s₀(x; β) with β = exp(`log_beta`), differentiable to any order in both.

    Tracers and function transforms get plain operations, which they fuse and differentiate themselves.
    """
    if is_transformed(x):
        if not isinstance(x, Tensor):
            return _composite(x, bounded_exp(log_beta).to(x.dtype))
        return _composite(_widen(x), bounded_exp(_widen(log_beta))).to(x.dtype)
    return _Softplus.apply(x, log_beta, 0.0)


def fixed_softplus(x: Tensor, beta: float) -> Tensor:
    """Return the usual softplus log(1 + e^{βx}) / β = s₀(x; β) + log(2) / β for a β that does not learn."""
    return _Softplus.apply(x, torch.tensor(math.log(beta)), math.log(2) / beta)


def softplus_gradient(
    grad: Tensor, y: Tensor, log_beta: Tensor, shift: float, with_beta: bool = True
) -> tuple[Tensor, Tensor | None]:
    """Return the gradients in x and log β for the gradient of y = s₀(x; β) + shift; differentiable to any order."""
    if torch.is_grad_enabled():
        return _Gradient.apply(grad, y, log_beta, shift, with_beta)
    return _first_order(grad, y, log_beta, shift, with_beta)


def sharpness(log_beta: Tensor) -> float:
    """Return β as a number, without an operation of PyTorch; above e⁸⁸, near float32's largest, all count as that."""
    return math.exp(min(float(log_beta), LARGEST_EXPONENT))


def is_transformed(x: object) -> bool:
    """Whether a tracer, a compiler or a function transform looks on, for which autograd functions are opaque."""
    return (
        not isinstance(x, Tensor)  # a tracer's proxy
        or torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
        or torch.autograd.forward_ad._current_level >= 0
        or torch.jit.is_tracing()
    )


def _composite(x: Tensor, beta: Tensor) -> Tensor:
    """Return s₀ from plain operations: s₀(x) = x⁺ + log1p(expm1(-|βx|) / 2) / β, without cancellation.

    `where` rather than `abs` and `relu`, so that autograd finds σ(0) = 1/2 and every further derivative at 0.
    """
    positive = x > 0
    decay = torch.where(positive, -beta * x, beta * x)
    return torch.where(positive, x, torch.zeros_like(x)) + torch.log1p(torch.expm1(decay) / 2) / beta


class _Softplus(torch.autograd.Function):
    """(x, ρ) ↦ y = s₀(x; e^ρ) + a constant shift."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, log_beta: Tensor, shift: float) -> Tensor:
        if _loops.applies(x):
            y = _loops.value(x, sharpness(log_beta), shift)
        else:
            y = (_composite(_widen(x), bounded_exp(_widen(log_beta))) + shift).to(x.dtype)
        ctx.save_for_backward(y, log_beta)
        ctx.shift = shift
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None]:
        y, log_beta = ctx.saved_tensors
        return *softplus_gradient(grad, y, log_beta, ctx.shift, needed(ctx, 1)), None


class _Gradient(torch.autograd.Function):
    """(g, y, ρ) ↦ (g σ, Σ g (log 2 - H(σ)) / β), the gradients in x and ρ, as a function of the output y."""

    @staticmethod
    def forward(
        ctx: Any, grad: Tensor, y: Tensor, log_beta: Tensor, shift: float, with_beta: bool
    ) -> tuple[Tensor, Tensor | None]:
        ctx.save_for_backward(grad, y, log_beta)
        ctx.set_materialize_grads(False)
        ctx.shift = shift
        return _first_order(grad, y, log_beta, shift, with_beta)

    @staticmethod
    def backward(ctx: Any, grad_x: Tensor | None, grad_beta: Tensor | None) -> tuple[Tensor | None, ...]:
        grad, y, log_beta = ctx.saved_tensors
        if grad_x is not None and grad_beta is None and not torch.is_grad_enabled() and _loops.applies(grad_x, grad, y):
            return *_loops.second(grad_x, grad, y, sharpness(log_beta), ctx.shift), None, None
        return *_second(grad_x, grad_beta, grad, y - ctx.shift, log_beta), None, None


def _first_order(
    grad: Tensor, y: Tensor, log_beta: Tensor, shift: float, with_beta: bool
) -> tuple[Tensor, Tensor | None]:
    if _loops.applies(grad, y):
        if with_beta:
            return _loops.gradients(grad, y, sharpness(log_beta), shift)
        return _loops.gradient(grad, y, sharpness(log_beta), shift), None
    beta = bounded_exp(_widen(log_beta))
    tau = _tau(_widen(y - shift), beta)
    in_x = (grad * (0.5 + 0.5 * tau)).to(grad.dtype)
    in_beta = (grad * _entropy_deficit(tau)).sum().to(log_beta.dtype) / beta if with_beta else None
    return in_x, in_beta


def _second(
    grad_x: Tensor | None, grad_beta: Tensor | None, grad: Tensor, y: Tensor, log_beta: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Differentiate `_first_order` in (g, y, ρ), in differentiable operations so that any further order follows."""
    beta, wide = bounded_exp(_widen(log_beta)), _widen(y)
    tau = _tau(wide, beta)
    sigma, rest = 0.5 + 0.5 * tau, 0.5 - 0.5 * tau
    in_grad, in_y, in_beta = torch.zeros_like(wide), torch.zeros_like(wide), torch.zeros_like(beta)
    if grad_x is not None:
        in_grad = grad_x * sigma
        in_y = grad_x * grad * (beta * rest)
        in_beta = (in_y * wide).sum()
    if grad_beta is not None:
        deficit = _entropy_deficit(tau) / beta
        odds = (beta * wide + torch.log(2 * sigma.clamp_min(torch.finfo(wide.dtype).tiny))) * rest  # βx (1 - σ)
        in_grad = in_grad + grad_beta * deficit
        in_y = in_y + grad_beta * grad * odds
        in_beta = in_beta + grad_beta * (grad * (wide * odds - deficit)).sum()
    return in_grad.to(grad.dtype), in_y.to(y.dtype), in_beta.to(log_beta.dtype)


def _widen(x: Tensor) -> Tensor:
    """Compute half precision in float32; leave float32 and float64 alone."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _tau(y: Tensor, beta: Tensor) -> Tensor:
    """τ = 1 - e^{-βy} = tanh(βx / 2), which rounding must not carry below -1."""
    return (-torch.expm1(-beta * y)).clamp_min(-1.0)


def _entropy_deficit(tau: Tensor) -> Tensor:
    """log 2 - H((1+τ)/2) = ½[(1+τ) log(1+τ) + (1-τ) log(1-τ)] = Σ_k τ^{2k} / (2k (2k-1)), by the series near 0."""
    square = tau * tau
    series = torch.zeros_like(tau)
    for k in range(12, 0, -1):
        series = (series + 1 / (2 * k * (2 * k - 1))) * square
    exact = 0.5 * (torch.xlogy(1 + tau, 1 + tau) + torch.xlogy(1 - tau, 1 - tau))
    return torch.where(square < 0.06, series, exact)

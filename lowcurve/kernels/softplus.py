r"""Softplus, differentiable to any order in x and log β, each order one operator.

.. math:: s_0(x; β) = \frac{1}{β} \log \frac{1 + e^{βx}}{2},  \qquad s_0' = σ(βx),  \qquad s_0'' = β σ (1 - σ) ≤ β / 4

The functions below save the *output* y alone, which the next layer keeps anyway; `reference.py` says what follows.
"""

import math
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from lowcurve.kernels import ops
from lowcurve.kernels.engine import bounded_exp, gradient_is_wanted, is_transformed
from lowcurve.kernels.reference.softplus import composite_softplus, entropy_deficit, tau_of, widen

# From this threshold on float32 does not show that PyTorch's softplus jumps there.
LEAST_THRESHOLD = 20.0


def centered_softplus(x: Tensor, log_beta: Tensor) -> Tensor:
    """Return s₀(x; β) with β = exp(`log_beta`), differentiable to any order in both.

    Tracers and function transforms get plain operations, which they fuse and differentiate themselves.
    """
    if is_transformed(x):
        if not isinstance(x, Tensor):  # a tracer's proxy
            return composite_softplus(x, bounded_exp(log_beta).to(x.dtype))
        return composite_softplus(widen(x), bounded_exp(widen(log_beta))).to(x.dtype)
    return _Softplus.apply(x, log_beta, 0.0)


def replaces_softplus(x: Tensor, beta: float, threshold: float) -> bool:
    """Whether `fixed_softplus` is PyTorch's softplus for x, which is x itself where βx is above a threshold."""
    return (
        0 < beta < math.inf and threshold >= LEAST_THRESHOLD and x.dtype is not torch.float64 and not is_transformed(x)
    )


def fixed_softplus(x: Tensor, beta: float) -> Tensor:
    """Return the usual softplus log(1 + e^{βx}) / β = s₀(x; β) + log(2) / β for a β that does not learn."""
    return _Softplus.apply(x, constant_tensor(math.log(beta), x.device), math.log(2) / beta)


@lru_cache(maxsize=256)
def constant_tensor(value: float, device: torch.device) -> Tensor:
    """Return a number as a tensor on a device, made once."""
    with torch.inference_mode(False):  # or graphs could not save it later
        return torch.tensor(value, device=device)


def softplus_gradient(
    grad: Tensor, y: Tensor, log_beta: Tensor, shift: float, with_beta: bool = True
) -> tuple[Tensor, Tensor | None]:
    """Return the gradients in x and log β for the gradient of y = s₀(x; β) + shift; differentiable to any order."""
    compute = _Gradient.apply if torch.is_grad_enabled() else ops.softplus_gradient
    return compute(grad, y, log_beta, shift, with_beta)


class _Softplus(torch.autograd.Function):
    """(x, ρ) ↦ y = s₀(x; e^ρ) + a constant shift."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, log_beta: Tensor, shift: float) -> Tensor:
        y: Tensor = ops.softplus(x, log_beta, shift)
        ctx.save_for_backward(y, log_beta)
        ctx.shift = shift
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None]:
        y, log_beta = ctx.saved_tensors
        return *softplus_gradient(grad, y, log_beta, ctx.shift, gradient_is_wanted(ctx, 1)), None


class _Gradient(torch.autograd.Function):
    """(g, y, ρ) ↦ (g σ, Σ g (log 2 - H(σ)) / β), the gradients in x and ρ, as a function of the output y."""

    @staticmethod
    def forward(
        ctx: Any, grad: Tensor, y: Tensor, log_beta: Tensor, shift: float, with_beta: bool
    ) -> tuple[Tensor, Tensor | None]:
        ctx.save_for_backward(grad, y, log_beta)
        ctx.set_materialize_grads(False)
        ctx.shift = shift
        found: tuple[Tensor, Tensor | None] = ops.softplus_gradient(grad, y, log_beta, shift, with_beta)
        return found

    @staticmethod
    def backward(ctx: Any, grad_x: Tensor | None, grad_beta: Tensor | None) -> tuple[Tensor | None, ...]:
        grad, y, log_beta = ctx.saved_tensors
        if grad_x is not None and grad_beta is None and not torch.is_grad_enabled():
            return *ops.softplus_second(grad_x, grad, y, log_beta, ctx.shift), None, None
        return *_second(grad_x, grad_beta, grad, y - ctx.shift, log_beta), None, None


def _second(
    grad_x: Tensor | None, grad_beta: Tensor | None, grad: Tensor, y: Tensor, log_beta: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Differentiate the gradient in (g, y, ρ), in differentiable operations so that any further order follows."""
    beta, wide = bounded_exp(widen(log_beta)), widen(y)
    tau = tau_of(wide, beta)
    sigma, rest = 0.5 + 0.5 * tau, 0.5 - 0.5 * tau
    in_grad, in_y, in_beta = torch.zeros_like(wide), torch.zeros_like(wide), torch.zeros_like(beta)
    if grad_x is not None:
        in_grad = grad_x * sigma
        in_y = grad_x * grad * (beta * rest)
        in_beta = (in_y * wide).sum()
    if grad_beta is not None:
        deficit = entropy_deficit(tau, beta * wide) / beta
        odds = (beta * wide + torch.log(2 * sigma.clamp_min(torch.finfo(wide.dtype).tiny))) * rest  # βx (1 - σ)
        in_grad = in_grad + grad_beta * deficit
        in_y = in_y + grad_beta * grad * odds
        in_beta = in_beta + grad_beta * (grad * (wide * odds - deficit)).sum()
    return in_grad.to(grad.dtype), in_y.to(y.dtype), in_beta.to(log_beta.dtype)

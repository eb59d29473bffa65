r"""Softplus in plain PyTorch: y = s₀(x; β) + shift with ρ = log β, its gradient and second order.

From y alone τ = 1 - e^{-β(y - shift)} = tanh(βx/2) and σ = (1 + τ)/2; the derivative in ρ is (log 2 - H(σ)) / β,
where H is the entropy of a coin with bias σ.
"""

import torch
from torch import Tensor

from lowcurve.kernels.engine import bounded_exp


def composite_softplus(x: Tensor, beta: Tensor) -> Tensor:
    """Return s₀(x; β) = x⁺ + log1p(expm1(-|βx|) / 2) / β, without cancellation, for autograd or a tracer to look into.

    `where` rather than `abs` and `relu`, so that autograd finds σ(0) = 1/2 and every further derivative at 0.
    """
    positive = x > 0
    decay = torch.where(positive, -beta * x, beta * x)
    return torch.where(positive, x, torch.zeros_like(x)) + torch.log1p(torch.expm1(decay) / 2) / beta


def softplus(x: Tensor, log_beta: Tensor, shift: float) -> Tensor:
    """Return s₀(x; β) + shift."""
    return (composite_softplus(widen(x), bounded_exp(widen(log_beta))) + shift).to(x.dtype)


def softplus_gradient(
    grad: Tensor, y: Tensor, log_beta: Tensor, shift: float, with_beta: bool
) -> tuple[Tensor, Tensor | None]:
    """Return g σ and, where wanted, Σ g (log 2 - H(σ)) / β: the gradients in x and log β."""
    beta = bounded_exp(widen(log_beta))
    centered = widen(y - shift)
    tau = tau_of(centered, beta)
    in_x = (grad * (0.5 + 0.5 * tau)).to(grad.dtype)
    in_beta = (grad * entropy_deficit(tau, beta * centered)).sum().to(log_beta.dtype) / beta if with_beta else None
    return in_x, in_beta


def softplus_second(
    outer: Tensor, grad: Tensor, y: Tensor, log_beta: Tensor, shift: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return h σ, h g β (1 - σ), and the sum of the latter times y - shift, for h the gradient of g σ."""
    beta, centered = bounded_exp(widen(log_beta)), widen(y - shift)
    tau = tau_of(centered, beta)
    bend = outer * grad * (beta * (0.5 - 0.5 * tau))
    in_grad = outer * (0.5 + 0.5 * tau)
    return in_grad.to(grad.dtype), bend.to(y.dtype), (bend * centered).sum().to(log_beta.dtype)


def widen(x: Tensor) -> Tensor:
    """Compute half precision in float32; leave float32 and float64 alone."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def tau_of(y: Tensor, beta: Tensor) -> Tensor:
    """τ = 1 - e^{-βy} = tanh(βx / 2), which rounding must not carry below -1."""
    return (-torch.expm1(-beta * y)).clamp_min(-1.0)


def entropy_deficit(tau: Tensor, scaled_y: Tensor) -> Tensor:
    """log 2 - H((1+τ)/2) = ½[(1+τ) log(1+τ) + (1-τ) log(1-τ)] = Σ_k τ^{2k} / (2k (2k-1)), by the series near 0.

    The second logarithm is -βy, with `scaled_y` = βy, of which large ones do not count, an infinite one neither.
    """
    square = tau * tau
    series = torch.zeros_like(tau)
    for k in range(12 if tau.dtype is torch.float64 else 6, 0, -1):
        series = (series + 1 / (2 * k * (2 * k - 1))) * square
    twice = 1 + tau
    exact = 0.5 * (twice * twice.clamp_min(1e-30).log() - (1 - tau) * scaled_y.clamp_max(200.0))
    return torch.where(square < 0.06, series, exact)

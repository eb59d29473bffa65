r"""Every operator in plain PyTorch: what the kernels of a device must compute, for all dtypes, devices and layouts.

Softplus: y = s₀(x; β) + shift with ρ = log β. From y alone τ = 1 - e^{-β(y - shift)} = tanh(βx/2) and σ = (1 + τ)/2;
the derivative in ρ is (log 2 - H(σ)) / β, where H is the entropy of a coin with bias σ.

Batch norm: w x̂ + b with x̂ = (x - μ) r, the batch's mean μ and r = (variance + ε)^{-1/2} per channel. Its gradient
is (w r P(g), Σ g x̂, Σ g), with the projection P(g) = g - M(g) - x̂ M(g x̂), M the channel's mean. For v the gradient of
the first output, by :math:`\partial \hat x = r P \,\partial x` and :math:`\partial r = -r^2 M(\hat x \,\partial x)`,

.. math:: \partial_g = w r P(v), \quad \partial_w = r m\, s, \quad
          \partial_x = -w r^2 \left[ M(g \hat x) P(v) + M(v \hat x) P(g) + s \hat x \right],

where s = M(vg) - M(v) M(g) - M(v x̂) M(g x̂) and m is the number of values per channel.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from lowcurve.kernels.engine import bounded_exp

_aten = torch.ops.aten


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
    tau = tau_of(widen(y - shift), beta)
    in_x = (grad * (0.5 + 0.5 * tau)).to(grad.dtype)
    in_beta = (grad * entropy_deficit(tau)).sum().to(log_beta.dtype) / beta if with_beta else None
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


def norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    other: Tensor | None,
    log_beta: Tensor | None,
    factor: float,
    shift: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return y = w x̂ + b, and μ and r; with a β instead y = s₀(factor (w x̂ + b + other); β) + shift.

    The running statistics move by `momentum`.
    """
    affine = (None if t is None else t.contiguous() for t in (weight, bias))
    y, mean, invstd = _aten.native_batch_norm(x, *affine, running_mean, running_var, True, momentum, eps)
    moved = [t for t in (running_mean, running_var) if t is not None and not t.is_inference()]
    torch.autograd.graph.increment_version(moved)  # below the dispatcher's key for autograd nobody else does
    y = y if other is None else y + other
    return y if log_beta is None else softplus(factor * y, log_beta, shift), mean, invstd


def norm_gradient(
    grad: Tensor,
    y: Tensor | None,
    x: Tensor,
    weight: Tensor | None,
    mean: Tensor,
    invstd: Tensor,
    eps: float,
    log_beta: Tensor | None,
    factor: float,
    shift: float,
    with_other: bool,
    with_beta: bool,
) -> tuple[Tensor, Tensor | None, Tensor, Tensor, Tensor | None]:
    """Return the gradients in x, other, weight, bias and log β; those in weight and bias even where there are none."""
    through, in_beta = _through(grad, y, log_beta, factor, shift, with_beta)
    in_x, in_weight, in_bias = _first_order(through, x, weight, mean, invstd, eps)
    in_other = None if not with_other else grad.clone() if log_beta is None else through
    return in_x, in_other, in_weight, in_bias, in_beta


def norm_second(
    outer: Tensor,
    outer_other: Tensor | None,
    grad: Tensor,
    y: Tensor | None,
    x: Tensor,
    weight: Tensor | None,
    mean: Tensor,
    invstd: Tensor,
    in_weight: Tensor,
    in_bias: Tensor,
    eps: float,
    log_beta: Tensor | None,
    factor: float,
    shift: float,
) -> tuple[Tensor, Tensor | None, Tensor, Tensor, Tensor | None]:
    """Return the gradients in g, y, x, weight and log β of ⟨outer, in_x⟩ + ⟨outer_other, in_other⟩."""
    through, _ = _through(grad, y, log_beta, factor, shift, False)
    in_through, outer_hat, outer_sum = _first_order(outer, x, weight, mean, invstd, eps)
    count = x.numel() // x.shape[1]
    a_g, m_g, a_v, m_v = (t / count for t in (in_weight, in_bias, outer_hat, outer_sum))
    others = [d for d in range(x.dim()) if d != 1]
    s = (outer * through).sum(others) / count - m_v * m_g - a_v * a_g
    scale = -invstd.square() if weight is None else -weight * invstd.square()
    slope = scale * (s - 2 * a_g * a_v) * invstd  # of x̂ = (x - μ) r
    shifted = -scale * (a_g * m_v + a_v * m_g) - slope * mean
    shape = (1, -1, *(1,) * (x.dim() - 2))
    in_x = shifted.view(shape) + outer * (scale * a_g).view(shape)
    in_x = (in_x + through * (scale * a_v).view(shape) + x * slope.view(shape)).to(x.dtype)
    in_scale = invstd * s * count
    if log_beta is None or y is None:
        return in_through, None, in_x, in_scale, None
    in_through = in_through if outer_other is None else in_through + outer_other
    in_grad, in_y, in_beta = softplus_second(factor * in_through, grad, y, log_beta, shift)
    return in_grad, in_y, in_x, in_scale, in_beta


def unit_weights(weights: Sequence[Tensor], slopes: Sequence[Tensor]) -> tuple[list[Tensor], Tensor]:
    """Return every W / σ, and all σ = ⟨W, S⟩, or 1 where that is below the smallest normal number."""
    products = [(w.to(s.dtype) * s).sum() for w, s in zip(weights, slopes, strict=True)]
    sigma = torch.stack(products)
    sigma = torch.where(sigma < torch.finfo(sigma.dtype).tiny, torch.ones_like(sigma), sigma)
    return [w / s for w, s in zip(weights, sigma.unbind(), strict=True)], sigma


def unit_weights_gradient(
    grads: Sequence[Tensor], units: Sequence[Tensor], slopes: Sequence[Tensor], sigma: Tensor
) -> list[Tensor]:
    """Return every (g - ⟨g, Y⟩ S) / σ for Y = W / σ."""
    found = []
    for grad, unit, slope, value in zip(grads, units, slopes, sigma.unbind(), strict=True):
        inner = (grad * unit).sum()  # not `dot`, whose last bit depends on where in memory its arguments are
        found.append(torch.addcmul(grad, slope, inner, value=-1) / value)
    return found


def widen(x: Tensor) -> Tensor:
    """Compute half precision in float32; leave float32 and float64 alone."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def tau_of(y: Tensor, beta: Tensor) -> Tensor:
    """τ = 1 - e^{-βy} = tanh(βx / 2), which rounding must not carry below -1."""
    return (-torch.expm1(-beta * y)).clamp_min(-1.0)


def entropy_deficit(tau: Tensor) -> Tensor:
    """log 2 - H((1+τ)/2) = ½[(1+τ) log(1+τ) + (1-τ) log(1-τ)] = Σ_k τ^{2k} / (2k (2k-1)), by the series near 0."""
    square = tau * tau
    series = torch.zeros_like(tau)
    for k in range(12, 0, -1):
        series = (series + 1 / (2 * k * (2 * k - 1))) * square
    exact = 0.5 * (torch.xlogy(1 + tau, 1 + tau) + torch.xlogy(1 - tau, 1 - tau))
    return torch.where(square < 0.06, series, exact)


def _first_order(
    grad: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, invstd: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return w r P(g), Σ g x̂ and Σ g by PyTorch's own kernel, which reads a weight as if it were contiguous."""
    unit = torch.ones_like(mean) if weight is None else weight.contiguous()
    found: tuple[Tensor, Tensor, Tensor] = _aten.native_batch_norm_backward(
        grad, x, unit, None, None, mean, invstd, True, eps, [True, True, True]
    )
    return found


def _through(
    grad: Tensor, y: Tensor | None, log_beta: Tensor | None, factor: float, shift: float, with_beta: bool
) -> tuple[Tensor, Tensor | None]:
    """Return t = factor g σ, the gradient of BN(x) + other, and that in log β; without activation g itself."""
    if log_beta is None or y is None:
        return grad, None
    through, in_beta = softplus_gradient(grad, y, log_beta, shift, with_beta)
    return factor * through, in_beta

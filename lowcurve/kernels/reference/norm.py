r"""Training-mode batch norm in plain PyTorch, alone or with a residual sum and a softplus, to second order.

w x̂ + b with x̂ = (x - μ) r, the batch's mean μ and r = (variance + ε)^{-1/2} per channel. Its gradient is
(w r P(g), Σ g x̂, Σ g), with the projection P(g) = g - M(g) - x̂ M(g x̂), M the channel's mean. For v the gradient of
the first output, by :math:`\partial \hat x = r P \,\partial x` and :math:`\partial r = -r^2 M(\hat x \,\partial x)`,

.. math:: \partial_g = w r P(v), \quad \partial_w = r m\, s, \quad
          \partial_x = -w r^2 \left[ M(g \hat x) P(v) + M(v \hat x) P(g) + s \hat x \right],

where s = M(vg) - M(v) M(g) - M(v x̂) M(g x̂) and m is the number of values per channel.
"""

from typing import Any

import torch
from torch import Tensor

from lowcurve.kernels.arguments import Gradients, Norm, NormGradient, Norms, NormSecond, Seconds
from lowcurve.kernels.reference.softplus import softplus, softplus_gradient, softplus_second

_aten = torch.ops.aten


def norm(*given: Any) -> Norms:
    """Return y = w x̂ + b, and μ and r; with a β instead y = s₀(factor (w x̂ + b + other); β) + shift.

    The running statistics move by `momentum`.
    """
    a = Norm(*given)
    affine = (None if t is None else t.contiguous() for t in (a.weight, a.bias))
    y, mean, invstd = _aten.native_batch_norm(a.x, *affine, a.running_mean, a.running_var, True, a.momentum, a.eps)
    moved = [t for t in (a.running_mean, a.running_var) if t is not None and not t.is_inference()]
    torch.autograd.graph.increment_version(moved)  # below the dispatcher's key for autograd nobody else does
    y = y if a.other is None else y + a.other
    return y if a.log_beta is None else softplus(a.factor * y, a.log_beta, a.shift), mean, invstd


def norm_gradient(*given: Any) -> Gradients:
    """Return the gradients in x, other, weight, bias and log β; those in weight and bias even where there are none."""
    a = NormGradient(*given)
    through, in_beta = gradient_through(a, a.with_beta)
    in_x, in_weight, in_bias = _first_order(through, a)
    in_other = None if not a.with_other else a.grad.clone() if a.log_beta is None else through
    return in_x, in_other, in_weight, in_bias, in_beta


def norm_second(*given: Any) -> Seconds:
    """Return the gradients in g, y, x, weight and log β of ⟨outer, in_x⟩ + ⟨outer_other, in_other⟩."""
    a = NormSecond(*given)
    through, _ = gradient_through(a, False)
    in_through, outer_hat, outer_sum = _first_order(a.outer, a)
    count = a.x.numel() // a.x.shape[1]
    a_g, m_g, a_v, m_v = (t / count for t in (a.in_weight, a.in_bias, outer_hat, outer_sum))
    others = [d for d in range(a.x.dim()) if d != 1]
    s = (a.outer * through).sum(others) / count - m_v * m_g - a_v * a_g
    scale = -a.invstd.square() if a.weight is None else -a.weight * a.invstd.square()
    slope = scale * (s - 2 * a_g * a_v) * a.invstd  # of x̂ = (x - μ) r
    shifted = -scale * (a_g * m_v + a_v * m_g) - slope * a.mean
    shape = (1, -1, *(1,) * (a.x.dim() - 2))
    in_x = shifted.view(shape) + a.outer * (scale * a_g).view(shape)
    in_x = (in_x + through * (scale * a_v).view(shape) + a.x * slope.view(shape)).to(a.x.dtype)
    in_scale = a.invstd * s * count
    if a.log_beta is None or a.y is None:
        return in_through, None, in_x, in_scale, None
    in_through = in_through if a.outer_other is None else in_through + a.outer_other
    in_grad, in_y, in_beta = softplus_second(a.factor * in_through, a.grad, a.y, a.log_beta, a.shift)
    return in_grad, in_y, in_x, in_scale, in_beta


def gradient_through(a: Any, with_beta: bool) -> tuple[Tensor, Tensor | None]:
    """Return t = factor g σ, the gradient of BN(x) + other, and that in log β; without activation g itself."""
    if a.log_beta is None or a.y is None:
        return a.grad, None
    through, in_beta = softplus_gradient(a.grad, a.y, a.log_beta, a.shift, with_beta)
    return a.factor * through, in_beta


def _first_order(grad: Tensor, a: NormGradient | NormSecond) -> tuple[Tensor, Tensor, Tensor]:
    """Return w r P(g), Σ g x̂ and Σ g by PyTorch's own kernel, which reads a weight as if it were contiguous."""
    unit = torch.ones_like(a.mean) if a.weight is None else a.weight.contiguous()
    found: tuple[Tensor, Tensor, Tensor] = _aten.native_batch_norm_backward(
        grad, a.x, unit, None, None, a.mean, a.invstd, True, a.eps, [True, True, True]
    )
    return found

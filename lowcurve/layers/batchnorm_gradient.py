"""Training-mode batch norm whose gradient is cheap to differentiate again: how, and by which formulas?"""

from typing import Any

import torch
from torch import Tensor

from lowcurve.layers import _loops
from lowcurve.layers.engine import separate

_aten = torch.ops.aten


def batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
) -> Tensor:
    """Normalize x by its own statistics per channel, which move the running ones; differentiable to any order."""
    return _BatchNorm.apply(x, weight, bias, running_mean, running_var, momentum, eps)


def batch_norm_gradient(
    grad: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, invstd: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients in x, weight and bias for that of the value; mean and 1/std are functions of x here too."""
    if torch.is_grad_enabled():
        return _BatchNormGradient.apply(grad, x, weight, mean, invstd, eps)
    return _first_order(grad, x, weight, mean, invstd, eps)


class _BatchNorm(torch.autograd.Function):
    """y = w x̂ + b with x̂ = (x - μ) r, the batch's mean μ and r = (variance + ε)^{-1/2} per channel."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        momentum: float,
        eps: float,
    ) -> Tensor:
        given = (x, weight, bias, running_mean, running_var)
        packed = all(t is None or t.is_contiguous() for t in (running_mean, running_var))
        if packed and _loops.normalizes(*given):
            y, mean, invstd = _loops.batch_norm(*given, momentum, eps)
        else:
            y, mean, invstd = _aten.native_batch_norm(*given, True, momentum, eps)
        ctx.save_for_backward(x, weight, mean, invstd)
        ctx.eps = eps
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, invstd = ctx.saved_tensors
        in_x, in_weight, in_bias = batch_norm_gradient(grad, x, weight, mean, invstd, ctx.eps)
        wanted = ctx.needs_input_grad
        return in_x, in_weight if wanted[1] else None, in_bias if wanted[2] else None, None, None, None, None


class _BatchNormGradient(torch.autograd.Function):
    r"""(g, x, w) ↦ (w r P(g), Σ g x̂, Σ g), with the projection P(g) = g - M(g) - x̂ M(g x̂), M the channel's mean.

    For v the gradient of the first output, by :math:`\partial \hat x = r P \,\partial x` and
    :math:`\partial r = -r^2 M(\hat x \,\partial x)`,

    .. math:: \partial_g = w r P(v), \quad \partial_w = r m\, s, \quad
              \partial_x = -w r^2 \left[ M(g \hat x) P(v) + M(v \hat x) P(g) + s \hat x \right],

    where s = M(vg) - M(v) M(g) - M(v x̂) M(g x̂) and m is the number of values per channel.
    """

    @staticmethod
    def forward(
        ctx: Any, grad: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, invstd: Tensor, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        outputs = _first_order(grad, x, weight, mean, invstd, eps)
        ctx.save_for_backward(grad, x, weight, mean, invstd, *outputs[1:])
        ctx.set_materialize_grads(False)
        ctx.eps = eps
        return outputs

    @staticmethod
    def backward(
        ctx: Any, outer: Tensor | None, outer_weight: Tensor | None, outer_bias: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        grad, x, weight, mean, invstd, grad_hat, grad_sum = ctx.saved_tensors
        if torch.is_grad_enabled() or outer is None or outer_weight is not None or outer_bias is not None:
            return _any_order(ctx, outer, outer_weight, outer_bias)
        if _loops.normalizes(x, weight, mean, invstd, grad_hat, grad_sum) and _loops.applies(outer, grad):
            found = _loops.batch_norm_second(outer, grad, x, weight, mean, invstd, grad_hat, grad_sum)
            return *found[:2], None if weight is None else found[2], None, None, None
        count = x.numel() // x.shape[1]
        in_grad, outer_hat, outer_sum = _first_order(outer, x, weight, mean, invstd, ctx.eps)
        a_g, m_g, a_v, m_v = (t / count for t in (grad_hat, grad_sum, outer_hat, outer_sum))
        others = [d for d in range(x.dim()) if d != 1]
        s = (outer * grad).sum(others) / count - m_v * m_g - a_v * a_g
        scale = -invstd.square() if weight is None else -weight * invstd.square()
        slope = scale * (s - 2 * a_g * a_v) * invstd  # of x̂ = (x - μ) r
        shift = -scale * (a_g * m_v + a_v * m_g) - slope * mean
        shape = (1, -1, *(1,) * (x.dim() - 2))
        in_x = torch.addcmul(shift.view(shape), outer, (scale * a_g).view(shape))
        in_x.addcmul_(grad, (scale * a_v).view(shape)).addcmul_(x, slope.view(shape))
        in_weight = None if weight is None else invstd * s * count
        return in_grad, in_x, in_weight, None, None, None


def _first_order(
    grad: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, invstd: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    if _loops.normalizes(x, weight, mean, invstd) and _loops.applies(grad):
        return _loops.batch_norm_gradient(grad, x, weight, mean, invstd)
    unit = torch.ones_like(mean) if weight is None else weight.contiguous()  # PyTorch reads it as if it were
    outputs: tuple[Tensor, Tensor, Tensor] = _aten.native_batch_norm_backward(
        grad, x, unit, None, None, mean, invstd, True, eps, [True, True, True]
    )
    return outputs


def _any_order(
    ctx: Any, outer: Tensor | None, outer_weight: Tensor | None, outer_bias: Tensor | None
) -> tuple[Tensor | None, ...]:
    """Differentiate the definition itself, in plain operations: slow, and right to every order."""
    grad, x, weight, *_ = ctx.saved_tensors
    create_graph = torch.is_grad_enabled()
    others = [d for d in range(x.dim()) if d != 1]
    shape = (1, -1, *(1,) * (x.dim() - 2))
    with torch.enable_grad():
        unit = torch.ones_like(x[0, :].flatten(1)[:, 0]) if weight is None else weight
        grad, x, w = (separate(t, create_graph) for t in (grad, x, unit))
        centered = x - x.mean(others, keepdim=True)
        invstd = (centered.square().mean(others, keepdim=True) + ctx.eps).rsqrt()
        hat = centered * invstd
        projected = grad - grad.mean(others, keepdim=True) - hat * (grad * hat).mean(others, keepdim=True)
        outputs = (w.view(shape) * invstd * projected, (grad * hat).sum(others), grad.sum(others))
        pairs = [(o, v) for o, v in zip(outputs, (outer, outer_weight, outer_bias), strict=True) if v is not None]
        in_grad, in_x, in_weight = torch.autograd.grad(
            [o for o, _ in pairs], (grad, x, w), [v for _, v in pairs], create_graph=create_graph, allow_unused=True
        )
    return in_grad, in_x, None if weight is None else in_weight, None, None, None

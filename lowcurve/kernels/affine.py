r"""Eval-mode batch norm, alone or in one pass with a residual sum and a softplus: how is it differentiated?

.. math:: y = a x + c \quad \text{or} \quad y = s_0(\text{factor} (a x + c + \text{other}); β) + \text{shift}

with a and c from the running statistics, weight and bias (`reference/affine.py`). Parameters are constants here, as
they are where a network is attacked or measured; where they learn, PyTorch's own operations do it.
"""

from typing import Any

import torch
from torch import Tensor

from lowcurve.kernels import ops
from lowcurve.kernels.arguments import AffineGradient
from lowcurve.kernels.engine import as_separate_input
from lowcurve.kernels.norm import FollowingActivation
from lowcurve.kernels.reference.affine import slope_of
from lowcurve.kernels.softplus import softplus_gradient


def takes_affine(*parameters: Tensor | None) -> bool:
    """Whether gradients are computed, in inputs but in no parameter.

    Where none are, PyTorch's own batch norm gives the same bits as where all are.
    """
    return torch.is_grad_enabled() and not any(t is not None and t.requires_grad for t in parameters)


def affine_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    var: Tensor,
    eps: float,
    activation: FollowingActivation | None = None,
) -> Tensor:
    """Normalize x by given statistics, then activate; differentiable in x and other to any order."""
    log_beta, other, factor, shift = activation or (None, None, 1.0, 0.0)
    return _Affine.apply(x, other, weight, bias, mean, var, log_beta, eps, factor, shift)


class _Affine(torch.autograd.Function):
    """(x, other) ↦ y."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, other: Tensor | None, *given: Any) -> Tensor:
        weight, bias, mean, var, log_beta, eps, factor, shift = given
        y: Tensor = ops.affine(x, weight, bias, mean, var, eps, other, log_beta, factor, shift)
        ctx.save_for_backward(None if log_beta is None else y, weight, var, log_beta)
        ctx.numbers = eps, factor, shift
        ctx.with_other = other is not None
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        y, weight, var, log_beta = ctx.saved_tensors
        eps, factor, shift = ctx.numbers
        compute = _AffineGradient.apply if torch.is_grad_enabled() else ops.affine_gradient
        found = compute(grad, y, weight, var, eps, log_beta, factor, shift, ctx.with_other)
        return *found, *(None,) * 8


class _AffineGradient(torch.autograd.Function):
    """(g, y) ↦ the gradients a t in x and t in other, for a gradient g of y and t = factor g σ."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> tuple[Tensor, Tensor | None]:
        a = AffineGradient(*given)
        ctx.save_for_backward(a.grad, a.y, a.weight, a.var, a.log_beta)
        ctx.set_materialize_grads(False)
        ctx.numbers = a.eps, a.factor, a.shift
        found: tuple[Tensor, Tensor | None] = ops.affine_gradient(*given)
        return found

    @staticmethod
    def backward(ctx: Any, outer: Tensor | None, outer_other: Tensor | None) -> tuple[Tensor | None, ...]:
        grad, y, weight, var, log_beta = ctx.saved_tensors
        eps, factor, shift = ctx.numbers
        a = AffineGradient(grad, y, weight, var, eps, log_beta, factor, shift, False)
        if torch.is_grad_enabled() or outer is None:
            return *_any_order(a, outer, outer_other), *(None,) * 7
        in_grad, in_y = ops.affine_second(outer, outer_other, grad, y, weight, var, eps, log_beta, factor, shift)
        return in_grad, in_y, *(None,) * 7


def _any_order(
    a: AffineGradient, outer: Tensor | None, outer_other: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """Return the same in operations that can be differentiated again: t is linear in g, and a function of y."""
    parts = [] if outer is None else [(outer * slope_of(a, outer)).to(outer.dtype)]
    parts += [] if outer_other is None else [outer_other]
    if not parts:
        return None, None
    h = sum(parts[1:], parts[0])
    if a.log_beta is None or a.y is None:
        return h, None
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        grad, y = (as_separate_input(t, create_graph) for t in (a.grad, a.y))
        through, _ = softplus_gradient(grad, y, a.log_beta, a.shift, False)
        found = torch.autograd.grad(through, (grad, y), a.factor * h, create_graph=create_graph)
    return found[0], found[1]

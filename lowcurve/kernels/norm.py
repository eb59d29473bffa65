r"""Training-mode batch norm, alone or in one pass with a residual sum and a softplus: how is it differentiated?

.. math:: y = w \hat x + b \quad \text{or} \quad y = s_0(\text{factor} (w \hat x + b + \text{other}); β) + \text{shift}

with x̂ = (x - μ) r by the batch's own mean and variance. Nothing stands in memory between x and y, nor between their
gradients. PyTorch's double backward of batch norm runs through dozens of passes: 25 times what the formulas need.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from lowcurve.kernels import ops
from lowcurve.kernels.engine import as_separate_input, gradient_is_wanted
from lowcurve.kernels.softplus import softplus_gradient


class Statistics(NamedTuple):
    """The running statistics that a forward moves, by how much, and ε."""

    mean: Tensor | None
    var: Tensor | None
    momentum: float
    eps: float


class FollowingActivation(NamedTuple):
    """What follows the batch norm: y = s₀(factor (BN(x) + other); β) + shift."""

    log_beta: Tensor
    other: Tensor | None
    factor: float
    shift: float


def batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    statistics: Statistics,
    activation: FollowingActivation | None = None,
) -> Tensor:
    """Normalize x by its own statistics per channel, which move the running ones, then activate; any order."""
    log_beta, other, factor, shift = activation or (None, None, 1.0, 0.0)
    return _Norm.apply(x, log_beta, weight, bias, other, *statistics, factor, shift)


class _Saved(NamedTuple):
    """What gradients need of a forward: y, ρ and the numbers factor and shift only where there is an activation."""

    y: Tensor | None
    x: Tensor
    weight: Tensor | None
    log_beta: Tensor | None
    mean: Tensor
    invstd: Tensor
    numbers: tuple[float, float, float]  # ε, factor, shift


class _Norm(torch.autograd.Function):
    """(x, ρ, w, b, other) ↦ y."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        log_beta: Tensor | None,
        weight: Tensor | None,
        bias: Tensor | None,
        other: Tensor | None,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        momentum: float,
        eps: float,
        factor: float,
        shift: float,
    ) -> Tensor:
        moved = (running_mean, running_var, momentum, eps)
        y, mean, invstd = ops.norm(x, weight, bias, *moved, other, log_beta, factor, shift)
        ctx.save_for_backward(None if log_beta is None else y, x, weight, log_beta, mean, invstd)
        ctx.numbers = eps, factor, shift
        ctx.with_other = other is not None
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        saved = _Saved._make((*ctx.saved_tensors, ctx.numbers))
        wanted = (ctx.with_other, saved.log_beta is not None and gradient_is_wanted(ctx, 1))
        compute = _NormGradient.apply if torch.is_grad_enabled() else _gradients
        in_x, in_other, in_weight, in_bias, in_beta = compute(grad, *saved, *wanted)
        _, _, with_weight, with_bias, *_ = ctx.needs_input_grad
        affine = (in_weight if with_weight else None, in_bias if with_bias else None)
        return in_x, in_beta, *affine, in_other, *(None,) * 6


class _NormGradient(torch.autograd.Function):
    """(g, y, x, w, ρ) ↦ the gradients in x, other, w, b and ρ, for a gradient g of y.

    With t = factor g σ the gradient of softplus, they are w r P(t), t, Σ t x̂, Σ t, and Σ g (log 2 - H(σ)) / β; without
    activation t = g.
    """

    @staticmethod
    def forward(ctx: Any, grad: Tensor, *given: Any) -> tuple[Tensor | None, ...]:
        *tensors, ctx.numbers, _, _ = given
        outputs = _gradients(grad, *given)
        ctx.save_for_backward(grad, *tensors, *outputs[2:4])
        ctx.set_materialize_grads(False)
        return outputs

    @staticmethod
    def backward(
        ctx: Any, outer: Tensor | None, outer_other: Tensor | None, *outer_rest: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        grad, y, x, weight, log_beta, *sums = ctx.saved_tensors
        if torch.is_grad_enabled() or outer is None or any(tensor is not None for tensor in outer_rest):
            return *_any_order(ctx, (outer, outer_other, *outer_rest)), *(None,) * 5
        eps, factor, shift = ctx.numbers
        in_grad, in_y, in_x, in_weight, in_beta = ops.norm_second(
            outer, outer_other, grad, y, x, weight, *sums, eps, log_beta, factor, shift
        )
        return in_grad, in_y, in_x, None if weight is None else in_weight, in_beta, *(None,) * 5


def _gradients(grad: Tensor, *given: Any) -> tuple[Tensor | None, ...]:
    y, x, weight, log_beta, mean, invstd, (eps, factor, shift), with_other, with_beta = given
    found: tuple[Tensor | None, ...] = ops.norm_gradient(
        grad, y, x, weight, mean, invstd, eps, log_beta, factor, shift, with_other, with_beta
    )
    return found


def _any_order(ctx: Any, outer: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    """Differentiate the definition itself, in plain operations: slow, and right to every order."""
    *saved, _, _, _, _ = ctx.saved_tensors
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        inputs: list[Any] = [None if t is None else as_separate_input(t, create_graph) for t in saved]
        outputs = _definition(ctx.numbers, *inputs)
        pairs = [(o, v) for o, v in zip(outputs, outer, strict=True) if v is not None]
        given = [t for t in inputs if t is not None]
        found = torch.autograd.grad(
            [o for o, _ in pairs], given, [v for _, v in pairs], create_graph=create_graph, allow_unused=True
        )
    following = iter(found)
    return tuple(None if t is None else next(following) for t in inputs)


def _definition(
    numbers: tuple[float, float, float],
    grad: Tensor,
    y: Tensor | None,
    x: Tensor,
    weight: Tensor | None,
    log_beta: Tensor | None,
) -> tuple[Any, ...]:
    """Return the gradients in x, other, weight, bias and log β from plain operations on (g, y, x, w, ρ)."""
    eps, factor, shift = numbers
    through, in_beta = grad, None
    if y is not None and log_beta is not None:
        through, in_beta = softplus_gradient(grad, y, log_beta, shift)
        through = factor * through
    others = [d for d in range(x.dim()) if d != 1]
    centered = x - x.mean(others, keepdim=True)
    invstd = (centered.square().mean(others, keepdim=True) + eps).rsqrt()
    hat = centered * invstd
    projected = through - through.mean(others, keepdim=True) - hat * (through * hat).mean(others, keepdim=True)
    scale = invstd if weight is None else weight.view(1, -1, *(1,) * (x.dim() - 2)) * invstd
    return scale * projected, through, (through * hat).sum(others), through.sum(others), in_beta

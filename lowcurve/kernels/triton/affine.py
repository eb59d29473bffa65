r"""Eval-mode batch norm on GPUs, alone or with what follows: value, gradient and second order, one kernel each.

.. math:: y = s_0(\text{factor} (a x + c + \text{other}); β) + \text{shift}, \qquad a = w / \sqrt{\text{var} + ε}

or y = a x + c without activation. The formulas are those of `reference/affine.py`.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from lowcurve.kernels.arguments import Affine, AffineGradient, AffineSecond
from lowcurve.kernels.triton.elementary import sharpness, softplus_, tau_
from lowcurve.kernels.triton.layout import Layout, alike, log_beta_on
from lowcurve.kernels.triton.tiles import loaded, mine, per_channel, store, tile


@triton.jit
def _slope(weight, var, eps, c, channels, WEIGHT: tl.constexpr):
    """a = w / √(var + ε) for channels c."""
    gain = 1.0 / tl.sqrt(tl.load(var + c, c < channels, 1.0).to(tl.float32) + eps)
    return gain * per_channel(weight, c, channels, WEIGHT, 1.0)


@triton.jit
def affine_kernel(
    x, weight, bias, mean, var, other, log_beta, y,
    eps, factor, shift,
    positions, channels, length, stride_n, stride_c, stride_l, per_part,
    WEIGHT: tl.constexpr, BIAS: tl.constexpr, OTHER: tl.constexpr, ACTIVATE: tl.constexpr,
    P: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """y = a x + c, or what follows it."""
    c, _, first, last = mine(per_part, positions, C)
    a = _slope(weight, var, eps, c, channels, WEIGHT)
    center = tl.load(mean + c, c < channels, 0.0).to(tl.float32)
    offset = per_channel(bias, c, channels, BIAS, 0.0)
    for start in range(first, last, P):
        at, inside = tile(start + tl.arange(0, P), c, last, channels, length, stride_n, stride_c, stride_l)
        value = (loaded(x, at, inside) - center[None, :]) * a[None, :] + offset[None, :]
        if OTHER:
            value += loaded(other, at, inside)
        if ACTIVATE:
            value = softplus_(factor * value, sharpness(log_beta), shift)
        store(y, at, value, inside)


@triton.jit
def affine_gradient_kernel(
    g, y, weight, var, log_beta, in_x, in_other,
    eps, factor, shift,
    positions, channels, length, stride_n, stride_c, stride_l, per_part,
    WEIGHT: tl.constexpr, OTHER: tl.constexpr, ACTIVATE: tl.constexpr,
    P: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """in_other = t = factor g σ, in_x = a t."""
    c, _, first, last = mine(per_part, positions, C)
    a = _slope(weight, var, eps, c, channels, WEIGHT)
    for start in range(first, last, P):
        at, inside = tile(start + tl.arange(0, P), c, last, channels, length, stride_n, stride_c, stride_l)
        t = loaded(g, at, inside)
        if ACTIVATE:
            centered = loaded(y, at, inside) - shift
            t = factor * t * (0.5 + 0.5 * tau_(centered, sharpness(log_beta)))
        if OTHER:
            store(in_other, at, t, inside)
        store(in_x, at, t * a[None, :], inside)


@triton.jit
def affine_second_kernel(
    v, v_other, g, y, weight, var, log_beta, in_g, in_y,
    eps, factor, shift,
    positions, channels, length, stride_n, stride_c, stride_l, per_part,
    WEIGHT: tl.constexpr, OTHER: tl.constexpr, ACTIVATE: tl.constexpr,
    P: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """With h = a v + v′ the gradient in t: in_g = factor σ h, in_y = h factor g β (1 - σ)."""
    c, _, first, last = mine(per_part, positions, C)
    a = _slope(weight, var, eps, c, channels, WEIGHT)
    for start in range(first, last, P):
        at, inside = tile(start + tl.arange(0, P), c, last, channels, length, stride_n, stride_c, stride_l)
        h = loaded(v, at, inside) * a[None, :]
        if OTHER:
            h += loaded(v_other, at, inside)
        if ACTIVATE:
            beta = sharpness(log_beta)
            tau = tau_(loaded(y, at, inside) - shift, beta)
            h *= factor
            bend = h * loaded(g, at, inside) * beta * (0.5 - 0.5 * tau)
            store(in_y, at, bend, inside)
            h *= 0.5 + 0.5 * tau
        store(in_g, at, h, inside)


def affine(*given: Any) -> Tensor:
    """Return a x + c; with a β instead s₀(factor (a x + c + other); β) + shift."""
    a = Affine(*given)
    x, other = alike(a.x, a.other)
    y = torch.empty_like(x)
    tensors = (x, a.weight, a.bias, a.mean, a.var, other, log_beta_on(x, a.log_beta), y)
    _launch(affine_kernel, x, tensors, a, OTHER=other is not None, BIAS=a.bias is not None)
    return y


def affine_gradient(*given: Any) -> tuple[Tensor, Tensor | None]:
    """Return the gradients in x and, where wanted, in other."""
    a = AffineGradient(*given)
    grad, y = alike(a.grad, a.y)
    in_x, in_other = torch.empty_like(grad), torch.empty_like(grad) if a.with_other else None
    tensors = (grad, y, a.weight, a.var, log_beta_on(grad, a.log_beta), in_x, in_other)
    _launch(affine_gradient_kernel, grad, tensors, a, OTHER=a.with_other)
    return in_x, in_other


def affine_second(*given: Any) -> tuple[Tensor, Tensor | None]:
    """Return the gradients in g and y of ⟨outer, in_x⟩ + ⟨outer_other, in_other⟩."""
    a = AffineSecond(*given)
    outer, other, grad, y = alike(a.outer, a.outer_other, a.grad, a.y)
    in_grad, in_y = torch.empty_like(grad), None if y is None else torch.empty_like(y)
    tensors = (outer, other, grad, y, a.weight, a.var, log_beta_on(grad, a.log_beta), in_grad, in_y)
    _launch(affine_second_kernel, outer, tensors, a, OTHER=other is not None)
    return in_grad, in_y


def _launch(kernel: Any, x: Tensor, tensors: tuple[Tensor | None, ...], a: Any, **flags: bool) -> None:
    layout = Layout.of(x, most_parts=1 << 16)
    tile_of = {"P": layout.tile["P"], "C": layout.tile["C"]}
    kernel[layout.grid](
        *(x if t is None else t for t in tensors),
        *(a.eps, a.factor, a.shift, *layout.numbers, layout.per_part),
        WEIGHT=a.weight is not None,
        ACTIVATE=a.log_beta is not None,
        **flags,
        **tile_of,
    )

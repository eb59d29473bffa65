"""Softplus y = s₀(x; β) + shift on GPUs: value, gradient and second-order gradient, one pass over memory each."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from lowcurve.kernels.triton.elementary import entropy_deficit, sharpness, softplus_, tau_
from lowcurve.kernels.triton.tiles import loaded, store

_BLOCK = 1024


@triton.jit
def value_kernel(x, log_beta, shift, y, size, BLOCK: tl.constexpr):
    """y = s₀(x; β) + shift."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    value = softplus_(loaded(x, at, inside), sharpness(log_beta), shift)
    store(y, at, value, inside)


@triton.jit
def gradient_kernel(g, y, log_beta, shift, in_x, partial, size, BLOCK: tl.constexpr, WITH_BETA: tl.constexpr):
    """in_x = g σ; partial = Σ g (log 2 - H(σ)) / β of each block."""
    block = tl.program_id(0)
    at = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    beta = sharpness(log_beta)
    grad = loaded(g, at, inside)
    centered = loaded(y, at, inside) - shift
    tau = tau_(centered, beta)
    store(in_x, at, grad * (0.5 + 0.5 * tau), inside)
    if WITH_BETA:
        terms = tl.where(inside, grad * entropy_deficit(tau, beta * centered), 0.0)
        tl.store(partial + block, tl.sum(terms) / beta)


@triton.jit
def second_kernel(h, g, y, log_beta, shift, in_g, in_y, partial, size, BLOCK: tl.constexpr):
    """in_g = h σ, in_y = h g β (1 - σ), partial = Σ in_y (y - shift) of each block, for h the gradient of g σ."""
    block = tl.program_id(0)
    at = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    beta = sharpness(log_beta)
    outer = loaded(h, at, inside)
    grad = loaded(g, at, inside)
    centered = loaded(y, at, inside) - shift
    tau = tau_(centered, beta)
    bend = outer * grad * beta * (0.5 - 0.5 * tau)
    store(in_g, at, outer * (0.5 + 0.5 * tau), inside)
    store(in_y, at, bend, inside)
    tl.store(partial + block, tl.sum(tl.where(inside, bend * centered, 0.0)))


def softplus(x: Tensor, log_beta: Tensor, shift: float) -> Tensor:
    """Return s₀(x; β) + shift."""
    x = dense(x)
    y = torch.empty_like(x)
    value_kernel[_grid(x)](x, log_beta.to(x.device), shift, y, x.numel(), BLOCK=_BLOCK)
    return y


def softplus_gradient(
    grad: Tensor, y: Tensor, log_beta: Tensor, shift: float, with_beta: bool
) -> tuple[Tensor, Tensor | None]:
    """Return g σ and, where wanted, Σ g (log 2 - H(σ)) / β, the gradient in log β."""
    y, grad = alike(y, grad)
    in_x, partial = torch.empty_like(y), _partial(y)
    gradient_kernel[_grid(y)](
        grad, y, log_beta.to(y.device), shift, in_x, partial, y.numel(), BLOCK=_BLOCK, WITH_BETA=with_beta
    )
    return in_x, partial.sum().to(log_beta.dtype) if with_beta else None


def softplus_second(
    outer: Tensor, grad: Tensor, y: Tensor, log_beta: Tensor, shift: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return h σ, h g β (1 - σ), and the sum of the latter times y - shift, for h the gradient of g σ."""
    y, outer, grad = alike(y, outer, grad)
    in_grad, in_y, partial = torch.empty_like(grad), torch.empty_like(y), _partial(y)
    second_kernel[_grid(y)](
        outer, grad, y, log_beta.to(y.device), shift, in_grad, in_y, partial, y.numel(), BLOCK=_BLOCK
    )
    return in_grad, in_y, partial.sum().to(log_beta.dtype)


def dense(x: Tensor) -> Tensor:
    """Return x itself where its elements fill one stretch of memory in any order, else a contiguous copy."""
    return x if x.is_contiguous() or torch.empty_like(x).stride() == x.stride() else x.contiguous()


def alike(y: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    """Give all tensors y's order in memory."""
    y = dense(y)
    return y, *(t if t.stride() == y.stride() else torch.empty_like(y, dtype=t.dtype).copy_(t) for t in others)


def _grid(x: Tensor) -> tuple[int]:
    return (triton.cdiv(x.numel(), _BLOCK),)


def _partial(y: Tensor) -> Tensor:
    return y.new_empty(triton.cdiv(y.numel(), _BLOCK), dtype=torch.float32)

"""How are the kernels of batch norm launched? Tiles by the layout in memory, parts by the number of channels."""

import math
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from lowcurve.kernels.triton import norm_kernels as kernels

# Programs to aim at: a few for each of the processors of a large GPU, which has about a hundred.
_PROGRAMS = 512
_MOST_PARTS = 64


class Activation(NamedTuple):
    """The softplus that follows: y = s₀(factor (BN(x) + other); β) + shift."""

    log_beta: Tensor
    factor: float
    shift: float


class _Layout(NamedTuple):
    """How a tensor (N, C, L) is cut; `numbers` go to a kernel by position, `tile` by name."""

    numbers: tuple[int, ...]
    tile: dict[str, int]
    grid: tuple[int, int]

    @classmethod
    def of(cls, x: Tensor) -> "_Layout":
        n, channels, length = len(x), x.shape[1], math.prod(x.shape[2:])
        last = channels > 1 and x.stride(1) == 1 and length > 1  # channels_last
        strides = (channels * length, 1, channels) if last else (channels * length, length, 1)
        columns = min(triton.next_power_of_2(channels), 32) if last or length == 1 else 1
        rows, positions = 1024 // columns, n * length
        groups = triton.cdiv(channels, columns)
        parts = triton.next_power_of_2(min(_MOST_PARTS, max(1, _PROGRAMS // groups), triton.cdiv(positions, rows)))
        per_part = triton.cdiv(triton.cdiv(positions, parts), rows) * rows
        return cls(
            (positions, channels, length, *strides, per_part),
            {"PARTS": parts, "P": rows, "C": columns},
            (groups, parts),
        )

    def sums(self, x: Tensor, kinds: int) -> Tensor:
        return x.new_empty(kinds * self.tile["PARTS"] * x.shape[1], dtype=torch.float32)


def norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    other: Tensor | None = None,
    activation: Activation | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return y = w x̂ + b, or its activation, and μ and r = 1/std of each channel; move the running statistics."""
    x, other = _alike(x, other)
    layout = _Layout.of(x)
    y = torch.empty_like(x)
    mean, invstd = (x.new_empty(x.shape[1], dtype=torch.float32) for _ in range(2))
    sums = layout.sums(x, 2)
    log_beta, factor, shift = activation or (None, 1.0, 0.0)
    kernels.statistics_kernel[layout.grid](x, sums, *layout.numbers, **layout.tile)
    tensors = (x, weight, bias, other, log_beta, y, mean, invstd, running_mean, running_var, sums)
    kernels.value_kernel[layout.grid](
        *(x if t is None else t for t in tensors),
        momentum,
        eps,
        factor,
        shift,
        *layout.numbers,
        **layout.tile,
        WEIGHT=weight is not None,
        BIAS=bias is not None,
        OTHER=other is not None,
        ACTIVATE=activation is not None,
        MEAN=running_mean is not None,
        VAR=running_var is not None,
    )
    return y, mean, invstd


def norm_gradient(
    grad: Tensor,
    y: Tensor | None,
    x: Tensor,
    weight: Tensor | None,
    mean: Tensor,
    invstd: Tensor,
    activation: Activation | None = None,
    with_other: bool = False,
    with_beta: bool = False,
) -> tuple[Tensor, Tensor | None, Tensor, Tensor, Tensor | None]:
    """Return the gradients in x, other, weight, bias and log β, the third and fourth even where there are none."""
    x, grad, y = _alike(x, grad, y)
    layout = _Layout.of(x)
    sums = layout.sums(x, 3)
    in_x, in_other = torch.empty_like(x), torch.empty_like(x) if with_other else None
    in_weight, in_bias, deficits = (torch.empty_like(mean) for _ in range(3))
    log_beta, factor, shift = activation or (None, 1.0, 0.0)
    flags: dict[str, Any] = {"ACTIVATE": activation is not None, "WITH_BETA": with_beta, **layout.tile}
    numbers = (factor, shift, *layout.numbers)
    kernels.gradient_sums_kernel[layout.grid](
        *(x if t is None else t for t in (grad, y, x, log_beta, mean, sums)), *numbers, **flags
    )
    tensors = (grad, y, x, weight, log_beta, mean, invstd, in_x, in_other, in_weight, in_bias, deficits, sums)
    kernels.gradient_kernel[layout.grid](
        *(x if t is None else t for t in tensors), *numbers, **flags, WEIGHT=weight is not None, OTHER=with_other
    )
    return in_x, in_other, in_weight, in_bias, deficits.sum() if with_beta else None


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
    activation: Activation | None = None,
) -> tuple[Tensor, Tensor | None, Tensor, Tensor, Tensor | None]:
    """Return the gradients in g, y, x, weight and log β of ⟨outer, in_x⟩ + ⟨outer_other, in_other⟩."""
    x, outer, outer_other, grad, y = _alike(x, outer, outer_other, grad, y)
    layout = _Layout.of(x)
    sums = layout.sums(x, 3 if activation is None else 7)
    in_grad, in_x, in_y = torch.empty_like(grad), torch.empty_like(x), None if y is None else torch.empty_like(y)
    in_scale, in_beta = torch.empty_like(mean), torch.empty_like(mean)
    log_beta, factor, shift = activation or (None, 1.0, 0.0)
    flags: dict[str, Any] = {"OTHER": outer_other is not None, "ACTIVATE": activation is not None, **layout.tile}
    numbers = (factor, shift, *layout.numbers)
    tensors: tuple[Tensor | None, ...] = (outer, outer_other, grad, y, x, log_beta, mean, in_bias, sums)
    kernels.second_sums_kernel[layout.grid](*(x if t is None else t for t in tensors), *numbers, **flags)
    tensors = (outer, outer_other, grad, y, x, weight, log_beta, mean, invstd, in_weight, in_bias)
    found = (in_grad, in_y, in_x, in_scale, in_beta, sums)
    kernels.second_kernel[layout.grid](
        *(x if t is None else t for t in (*tensors, *found)), *numbers, **flags, WEIGHT=weight is not None
    )
    return in_grad, in_y, in_x, in_scale, None if activation is None else in_beta.sum()


def _alike(x: Tensor, *others: Tensor | None) -> tuple[Any, ...]:
    """Return x in row-major or channels_last order, and the others in x's."""
    rows_last = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
    x = x if rows_last or x.is_contiguous() else x.contiguous()
    return x, *(
        t if t is None or t.stride() == x.stride() else torch.empty_like(x, dtype=t.dtype).copy_(t) for t in others
    )

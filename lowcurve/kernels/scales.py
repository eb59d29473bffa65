"""Weights and biases of γ-Lipschitz batch norms times min(1, γ / ‖BN‖), for many layers at a time, and the gradient."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lowcurve.kernels import ops
from lowcurve.kernels.arguments import OptionalTensors
from lowcurve.kernels.engine import as_separate_input, bounded_exp
from lowcurve.kernels.reference.scales import factor, scaled_weight, steepest


def norm_scales(
    variances: Sequence[Tensor],
    weights: OptionalTensors,
    biases: OptionalTensors,
    log_gammas: Sequence[Tensor],
    eps: Sequence[float],
) -> list[tuple[Tensor, Tensor | None]]:
    """Return each layer's weight and bias times its factor, differentiable to any order; variances are constants."""
    found = iter(_Scales.apply(tuple(eps), *variances, *weights, *biases, *log_gammas))
    scaled = [next(found) for _ in variances]
    return [(weight, None if bias is None else next(found)) for weight, bias in zip(scaled, biases, strict=True)]


class _Scales(torch.autograd.Function):
    """(variances, weights, biases, logarithms of γ) ↦ scaled weights, then the scaled biases that there are."""

    @staticmethod
    def forward(ctx: Any, eps: tuple[float, ...], *tensors: Tensor | None) -> tuple[Tensor, ...]:
        variances, weights, biases, log_gammas = _quarters(tensors)
        scaled, shifted, gains, factors = ops.scales(variances, weights, biases, log_gammas, list(eps))
        ctx.save_for_backward(*weights, *biases, *log_gammas, gains, factors)
        return *scaled, *shifted

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        *saved, gains, factors = ctx.saved_tensors
        count = len(saved) // 3
        weights, biases = saved[:count], saved[count : 2 * count]
        if torch.is_grad_enabled():
            return None, *(None,) * count, *_any_order(saved, gains, grads)
        in_weights, in_biases, in_gammas = ops.scales_gradient(
            list(grads[:count]), list(grads[count:]), weights, biases, gains, factors
        )
        places = iter((*in_weights, *in_biases))
        affine = (None if t is None else next(places) for t in (*weights, *biases))
        return None, *(None,) * count, *affine, *in_gammas.unbind()


def _any_order(saved: Sequence[Tensor | None], gains: Tensor, grads: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    """Differentiate the definition itself, in plain operations."""
    inputs = [None if t is None else as_separate_input(t, True) for t in saved]
    count = len(saved) // 3
    weights, biases, log_gammas = inputs[:count], inputs[count : 2 * count], inputs[2 * count :]
    own = gains.split([len(grad) for grad in grads[:count]])
    scaled, shifted = [], []
    for gain, weight, bias, log_gamma in zip(own, weights, biases, log_gammas, strict=True):
        assert log_gamma is not None
        f = factor(bounded_exp(log_gamma), steepest(gain, weight))
        scaled.append(scaled_weight(gain, weight, f))
        shifted += [] if bias is None else [bias * f]
    given = [t for t in inputs if t is not None]
    found = iter(torch.autograd.grad([*scaled, *shifted], given, grads, create_graph=True, allow_unused=True))
    return tuple(None if t is None else next(found) for t in inputs)


def _quarters(tensors: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any], list[Any]]:
    count = len(tensors) // 4
    first, second, third, last = (list(tensors[i * count : (i + 1) * count]) for i in range(4))
    return first, second, third, last

"""Weights and biases of all γ-Lipschitz batch norms times min(1, γ / ‖BN‖) on GPUs, and the gradient: one launch each.

A program has a layer, through whose channels it walks twice. Tables have the address of every layer's tensors, 0 where
there is none. The formulas are those of `reference/scales.py`.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from lowcurve.kernels.arguments import OptionalTensors
from lowcurve.kernels.triton.tables import addresses, number_table

_BLOCK = 256


@triton.jit
def _load(address, c, channels, missing):
    """Load one value per channel from an address, or take `missing` where it is 0."""
    values = tl.load(address.to(tl.pointer_type(tl.float32)) + c, c < tl.where(address == 0, 0, channels), 0.0)
    return tl.where(address == 0, missing, values)


@triton.jit
def scales_kernel(
    variances, weights, biases, log_gammas, eps, scaled, shifted, gains, factors, first, BLOCK: tl.constexpr
):
    """gains = (variance + ε)^{-1/2}; then every f w and f b, and f."""
    layer = tl.program_id(0)
    begin = tl.load(first + layer)
    channels = tl.load(first + layer + 1) - begin
    weight = tl.load(weights + layer)
    bias = tl.load(biases + layer)
    e = tl.load(eps + layer)
    steep = 0.0
    for start in range(0, channels, BLOCK):
        c = start + tl.arange(0, BLOCK)
        inside = c < channels
        gain = 1.0 / tl.sqrt(_load(tl.load(variances + layer), c, channels, 1.0) + e)
        tl.store(gains + begin + c, gain, inside)
        steep = tl.maximum(steep, tl.max(tl.where(inside, gain * tl.abs(_load(weight, c, channels, 1.0)), 0.0)))
    log_gamma = tl.load(tl.load(log_gammas + layer).to(tl.pointer_type(tl.float32)))
    gamma = tl.exp(tl.where(log_gamma > 88.0, 88.0, log_gamma))
    f = tl.where(steep > gamma, gamma / tl.where(steep > gamma, steep, 1.0), 1.0)
    tl.store(factors + layer, f)
    for start in range(0, channels, BLOCK):
        c = start + tl.arange(0, BLOCK)
        inside = c < channels
        out = tl.load(scaled + layer).to(tl.pointer_type(tl.float32))
        tl.store(out + c, f * _load(weight, c, channels, 1.0), inside)
        if bias != 0:
            out = tl.load(shifted + layer).to(tl.pointer_type(tl.float32))
            tl.store(out + c, f * _load(bias, c, channels, 0.0), inside)


@triton.jit
def scales_gradient_kernel(
    grads, bias_grads, weights, biases, gains, factors, in_weights, in_biases, in_gammas, first, BLOCK: tl.constexpr
):
    """Gradients in weights, biases and log γ; the steepest channels share what comes through f."""
    layer = tl.program_id(0)
    begin = tl.load(first + layer)
    channels = tl.load(first + layer + 1) - begin
    weight = tl.load(weights + layer)
    bias = tl.load(biases + layer)
    grad = tl.load(grads + layer)
    bias_grad = tl.load(bias_grads + layer)
    f = tl.load(factors + layer)
    steep = 0.0
    ties = 0.0
    through = 0.0
    for start in range(0, channels, BLOCK):
        c = start + tl.arange(0, BLOCK)
        inside = c < channels
        w = _load(weight, c, channels, 1.0)
        slope = tl.where(inside, tl.load(gains + begin + c, inside, 0.0) * tl.abs(w), -1.0)
        most = tl.max(slope)
        count = tl.sum(tl.where(slope == most, 1.0, 0.0))
        ties = tl.where(most > steep, count, tl.where(most == steep, ties + count, ties))
        steep = tl.maximum(steep, most)
        through += tl.sum(tl.where(inside, _load(grad, c, channels, 0.0) * w, 0.0))
        through += tl.sum(_load(bias_grad, c, channels, 0.0) * _load(bias, c, channels, 0.0))
    through = tl.where(f < 1.0, through * f, 0.0)
    tl.store(in_gammas + layer, through)
    share = tl.where(f < 1.0, -through / (tl.where(steep > 0.0, steep, 1.0) * ties), 0.0)
    for start in range(0, channels, BLOCK):
        c = start + tl.arange(0, BLOCK)
        inside = c < channels
        if weight != 0:
            w = _load(weight, c, channels, 1.0)
            gain = tl.load(gains + begin + c, inside, 0.0)
            own = tl.where(gain * tl.abs(w) == steep, share * gain, 0.0)
            own = tl.where(w > 0.0, own, tl.where(w < 0.0, -own, 0.0))
            out = tl.load(in_weights + layer).to(tl.pointer_type(tl.float32))
            tl.store(out + c, f * _load(grad, c, channels, 0.0) + own, inside)
        if bias != 0:
            out = tl.load(in_biases + layer).to(tl.pointer_type(tl.float32))
            tl.store(out + c, f * _load(bias_grad, c, channels, 0.0), inside)


def scales(
    variances: Sequence[Tensor],
    weights: OptionalTensors,
    biases: OptionalTensors,
    log_gammas: Sequence[Tensor],
    eps: Sequence[float],
) -> tuple[list[Tensor], list[Tensor], Tensor, Tensor]:
    """Return all f w; all f b, of layers that have one; all 1/std in one vector; and every f = min(1, γ / ‖BN‖)."""
    device, first = variances[0].device, _first(variances)
    scaled = [torch.empty_like(variance) for variance in variances]
    shifted = [None if bias is None else torch.empty_like(bias) for bias in biases]
    gains, factors = variances[0].new_empty(first[-1]), variances[0].new_empty(len(variances))
    given = (addresses(t, device) for t in (variances, weights, biases, log_gammas))
    found = (addresses(t, device) for t in (scaled, shifted))
    scales_kernel[(len(variances),)](
        *given, number_table(tuple(eps), torch.float32, device), *found, gains, factors,
        number_table(first, torch.int64, device), BLOCK=_BLOCK,
    )  # fmt: skip
    return scaled, [bias for bias in shifted if bias is not None], gains, factors


def scales_gradient(
    grads: Sequence[Tensor],
    bias_grads: Sequence[Tensor],
    weights: OptionalTensors,
    biases: OptionalTensors,
    gains: Tensor,
    factors: Tensor,
) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """Return the gradients in the weights and biases that there are, and in every log γ."""
    device, following = gains.device, iter(bias_grads)
    of_biases = [None if bias is None else next(following) for bias in biases]
    in_weights, in_biases = ([None if t is None else torch.empty_like(t) for t in own] for own in (weights, biases))
    in_gammas = torch.empty_like(factors)
    given = (addresses(t, device) for t in (grads, of_biases, weights, biases))
    found = (addresses(t, device) for t in (in_weights, in_biases))
    table = number_table(_first(grads), torch.int64, device)
    scales_gradient_kernel[(len(grads),)](*given, gains, factors, *found, in_gammas, table, BLOCK=_BLOCK)
    return [w for w in in_weights if w is not None], [b for b in in_biases if b is not None], in_gammas


def _first(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    """Return where each layer's channels begin among those of all, and where they end."""
    return 0, *torch.tensor([len(t) for t in tensors]).cumsum(0).tolist()

"""What is computed of the parameters of all layers at a time, on CPUs: unit weights, and the scales of γ-BNs."""

import ctypes
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from lowcurve.kernels import reference
from lowcurve.kernels.arguments import OptionalTensors
from lowcurve.kernels.cpu.library import call
from lowcurve.kernels.cpu.tensors import alike, packed, room_for_blocks, sharpness, takes


def unit_weights(weights: Sequence[Tensor], slopes: Sequence[Tensor]) -> tuple[list[Tensor], Tensor]:
    """Return every W / σ, and all σ = ⟨W, S⟩, or 1 where that is below the smallest normal number."""
    if not takes(*weights, *slopes):
        return reference.unit_weights(weights, slopes)
    given = list(zip(*map(alike, weights, slopes), strict=True))
    units = [torch.empty_like(weight) for weight in given[0]]
    sizes, sigma = [unit.numel() for unit in units], units[0].new_empty(len(units))
    found = (_addresses(units), sigma, room_for_blocks(units[0], max(sizes)))
    call("lowcurve_units", len(units), _numbers(ctypes.c_long, sizes), *map(_addresses, given), *found)
    return units, sigma


def unit_weights_gradient(
    grads: Sequence[Tensor], units: Sequence[Tensor], slopes: Sequence[Tensor], sigma: Tensor
) -> list[Tensor]:
    """Return every (g - ⟨g, Y⟩ S) / σ for Y = W / σ."""
    if not takes(*grads, *units, *slopes):
        return reference.unit_weights_gradient(grads, units, slopes, sigma)
    units, grads, slopes = zip(*map(alike, units, grads, slopes), strict=True)
    found, sizes = [torch.empty_like(unit) for unit in units], [unit.numel() for unit in units]
    given = map(_addresses, (grads, units, slopes))
    room = room_for_blocks(sigma, max(sizes))
    call("lowcurve_units_gradient", len(sizes), _numbers(ctypes.c_long, sizes), *given, sigma, _addresses(found), room)
    return found


def scales(
    variances: Sequence[Tensor],
    weights: OptionalTensors,
    biases: OptionalTensors,
    log_gammas: Sequence[Tensor],
    eps: Sequence[float],
) -> tuple[list[Tensor], list[Tensor], Tensor, Tensor]:
    """Return all f w; all f b, of layers that have one; all 1/std in one vector; and every f = min(1, γ / ‖BN‖)."""
    if not takes(*variances, *weights, *biases):
        return reference.scales(variances, weights, biases, log_gammas, eps)
    sizes = [len(variance) for variance in variances]
    scaled = [torch.empty_like(variance) for variance in variances]
    shifted = [None if bias is None else torch.empty_like(bias) for bias in biases]
    gains, factors = variances[0].new_empty(sum(sizes)), variances[0].new_empty(len(sizes))
    gammas = _numbers(ctypes.c_float, map(sharpness, log_gammas))
    given = (_table(variances), _table(weights), _table(biases), gammas, _numbers(ctypes.c_float, eps))
    found = (_table(scaled), _table(shifted), gains, factors)
    call("lowcurve_scales", len(sizes), _numbers(ctypes.c_long, sizes), *given, *found)
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
    if not takes(*grads, *bias_grads, *weights, *biases, gains, factors):
        return reference.scales_gradient(grads, bias_grads, weights, biases, gains, factors)
    sizes, following = [len(grad) for grad in grads], iter(bias_grads)
    of_biases = [None if bias is None else next(following) for bias in biases]
    in_weights, in_biases = ([None if t is None else torch.empty_like(t) for t in own] for own in (weights, biases))
    in_gammas = torch.empty_like(factors)
    given = (_table(grads), _table(of_biases), _table(weights), _table(biases), gains, factors)
    found = (_table(in_weights), _table(in_biases), in_gammas)
    call("lowcurve_scales_gradient", len(sizes), _numbers(ctypes.c_long, sizes), *given, *found)
    return [w for w in in_weights if w is not None], [b for b in in_biases if b is not None], in_gammas


class _Array:
    """Numbers in memory, which go to a loop by their address as a tensor's do; it keeps what they are addresses of."""

    def __init__(self, kind: type, values: Sequence[object], kept: object = None) -> None:
        self.kept = kept
        self.values = (kind * len(values))(*values)  # type: ignore[operator]

    def data_ptr(self) -> int:
        """Return where the first number is."""
        return ctypes.addressof(self.values)


def _numbers(kind: type, values: Iterable[float]) -> _Array:
    return _Array(kind, list(values))


def _table(vectors: OptionalTensors) -> _Array:
    """Return the addresses of vectors; one that is not packed is copied."""
    return _addresses([packed(vector) for vector in vectors])


def _addresses(tensors: OptionalTensors) -> _Array:
    """Return the addresses of tensors as they are."""
    return _Array(ctypes.c_void_p, [None if t is None else t.data_ptr() for t in tensors], tensors)

"""What does surgery change before any training? Accuracy and geometry, before and after."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from lowcurve.errors import UserError
from lowcurve.geometry.curvature import curvature
from lowcurve.modes import observing
from lowcurve.surgery.convert import convert

_SHARP = 1000.0
_FIELDS = {"gradient norm": "gradient_norm", "Hessian norm": "hessian_norm", "curvature": "curvature"}


class Row(NamedTuple):
    """One quantity of the model as it came and as surgery returns it."""

    quantity: str
    before: float
    after: float


def compare(before: nn.Module, after: nn.Module, x: Tensor, y: Tensor | None = None) -> list[Row]:
    """Measure both models on inputs x, with labels y or, without, with the first model's own predictions.

    The Hessian of a ReLU network is blind to its kinks, so ReLU and LeakyReLU of `before` are measured as softplus
    with β = 1000, as in the paper's baseline: the same function within 0.0007 per activation.
    """
    first, second = _logits(before, x), _logits(after, x)
    labels = first.argmax(1) if y is None else y
    rows = [Row("same prediction, %", 100.0, _share(first.argmax(1) == second.argmax(1)))]
    if y is not None:
        rows.append(Row("accuracy, %", _share(first.argmax(1) == y), _share(second.argmax(1) == y)))
    smooth = _smoothed(before, x[:2])
    for of in ("loss", "margin"):
        one, other = (curvature(model, x, labels, of=of) for model in (smooth, after))
        for name, field in _FIELDS.items():
            pair = getattr(one, field), getattr(other, field)
            rows.append(Row(f"{name} of {of}, median", *(float(value.nanmedian()) for value in pair)))
            rows.append(Row(f"{name} of {of}, mean", *(float(value.nanmean()) for value in pair)))
    return rows


def _smoothed(model: nn.Module, example: Tensor) -> nn.Module:
    """Return the model with sharp softplus for kinked activations, or as it is where that would be another function."""
    try:
        smooth, report = convert(model, example, batchnorm=False, spectral=False, init_beta=_SHARP)
    except UserError:  # its activations cannot be converted
        return model
    return model if any(change.note for change in report.replaced) else smooth


def _logits(model: nn.Module, x: Tensor) -> Tensor:
    with observing(model), torch.no_grad():
        output = model(x)
    if not isinstance(output, Tensor):
        raise UserError(
            f"expected a model that returns logits, (N, classes), got {type(output).__name__}; wrap the model in one"
            " whose forward picks the logits"
        )
    return output


def _share(hits: Tensor) -> float:
    return 100 * float(hits.float().mean())

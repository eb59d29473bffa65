"""What does surgery change before any training? Accuracy and geometry, before and after."""

import warnings
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lowcurve.geometry.curvature import curvature
from lowcurve.geometry.kinks import STAND_IN, KinkWarning, kinks, smooth_stand_in
from lowcurve.observe import observing
from lowcurve.outputs import ask, logits_of
from lowcurve.types import Geometry

_FIELDS = {"gradient norm": "gradient_norm", "Hessian norm": "hessian_norm", "curvature": "curvature"}


class Comparison(NamedTuple):
    """One quantity of the model as it came, as surgery returns it, and of the stand-in for a model with kinks."""

    quantity: str
    before: float
    after: float
    stand_in: float | None = None


def compare(
    before: nn.Module, after: nn.Module, x: Tensor, y: Tensor | None = None, stand_in: float = STAND_IN
) -> list[Comparison]:
    """Measure both models on inputs x, with labels y or, without, with the first model's own predictions.

    The Hessian of a ReLU network is blind to its kinks, so a model that has some is measured a second time, with
    softplus of β = `stand_in` in their place; that is what `after` can be compared with.
    """
    first, second = _logits(before, x), _logits(after, x)
    labels = first.argmax(1) if y is None else y
    rows = [Comparison("same prediction, %", 100.0, _share(first.argmax(1) == second.argmax(1)))]
    if y is not None:
        rows.append(Comparison("accuracy, %", _share(first.argmax(1) == y), _share(second.argmax(1) == y)))
    models = [before, after]
    if kinks(before, x[:1]):
        models.append(smooth_stand_in(before, x[:1], stand_in))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KinkWarning)  # the column says it
        for of in ("loss", "margin"):
            rows += _rows(of, [curvature(model, x, labels, of=of) for model in models])
    return rows


def _rows(of: str, measured: list[Geometry]) -> list[Comparison]:
    rows = []
    for name, field in _FIELDS.items():
        values = [getattr(geometry, field) for geometry in measured]
        rows.append(Comparison(f"{name} of {of}, median", *(float(value.nanmedian()) for value in values)))
        rows.append(Comparison(f"{name} of {of}, mean", *(float(value.nanmean()) for value in values)))
    return rows


def _logits(model: nn.Module, x: Tensor) -> Tensor:
    with observing(model), torch.no_grad():
        return logits_of(ask(model, x))


def _share(hits: Tensor) -> float:
    return 100 * float(hits.float().mean())

"""How much can an explanation be changed by a search? The other side of its bound.

A bound lies above every change within the radius, what is found here below the largest one. The search runs on a copy in
float64, on the sphere: `gradient_stability` climbs from several random directions.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lowcurve.errors import UserError
from lowcurve.geometry.functions import FUNCTIONS, Of, checked_inputs, checked_labels, scalar_function
from lowcurve.geometry.stability import gradient_stability
from lowcurve.modes import observing
from lowcurve.outputs import logits_of


@dataclass(frozen=True)
class Manipulation:
    """The largest change, relative change and the smallest cosine of N gradients that were found within a radius.

    What is relative to a gradient of 0 is NaN.
    """

    change: Tensor
    relative: Tensor
    cosine: Tensor


def manipulate_explanation(
    model: nn.Module,
    x: Tensor,
    y: Tensor | None,
    radius: float,
    *,
    of: str | int = "margin",
    restarts: int = 4,
    steps: int = 10,
    seed: int = 0,
) -> Manipulation:
    """Search ‖δ‖₂ = `radius` for the largest change of ∇f and for its largest turn, from `restarts` directions each.

    f is that of `explanation_bound`: for "margin" the other class is the one at x, wherever δ leads.

    >>> found = manipulate_explanation(nn.Linear(3, 2), torch.rand(4, 3), None, 0.1)  # a linear f does not bend
    >>> float(found.change.max()), round(float(found.cosine.min()), 6)
    (0.0, 1.0)
    """
    if isinstance(radius, Tensor) or not 0 < radius < float("inf"):
        raise UserError(f"expected one radius > 0, got {radius}")
    x = checked_inputs(x)
    with observing(model), torch.no_grad():
        y = checked_labels(model, x, y, of)
        other = logits_of(model(x.clone())).scatter(1, y.view(-1, 1), -torch.inf).argmax(1)
    model, x = copy.deepcopy(model).double(), x.double()
    function, labels = fixed_function(of, y, other)
    change, turn = (
        gradient_stability(
            model, x, labels, [radius], restarts, seed, of=function, direction="adversarial", steps=steps, measured=kind
        ).values[0].amax(0)
        for kind in ("change", "turn")
    )  # fmt: skip
    return Manipulation(change * _gradient_norm(model, x, y, other, of), change, 1 - turn)


def fixed_function(of: str | int, y: Tensor, other: Tensor) -> tuple[Of, Tensor]:
    """Return f and its labels for `gradient_stability`; the margin is that of the two classes given."""
    if of != "margin":
        return of, y
    return _margin_between, torch.stack([y, other], 1)


def _margin_between(outputs: Any, classes: Tensor) -> Tensor:
    pair = logits_of(outputs).gather(1, classes)
    return pair[:, 0] - pair[:, 1]


def _gradient_norm(model: nn.Module, x: Tensor, y: Tensor, other: Tensor, of: str | int) -> Tensor:
    function, labels = fixed_function(of, y, other)
    value: Callable[[Any, Tensor], Tensor] = scalar_function(function)
    assert of in FUNCTIONS or isinstance(of, int)
    with observing(model), torch.enable_grad():
        leaf = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(value(model(leaf.clone()), labels).sum(), leaf, materialize_grads=True)
    return gradient.flatten(1).norm(dim=1)

"""How much can an explanation be changed by a search? The other side of its bound.

A bound lies above every change within the radius, what is found here below the largest one. The search runs on a copy
in float64, on the sphere: `gradient_stability` climbs from several random directions.
"""

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lowcurve import checks
from lowcurve.geometry.functions import Of, checked_inputs, checked_labels, scalar_function
from lowcurve.geometry.kinks import KinkWarning
from lowcurve.geometry.stability import gradient_stability
from lowcurve.observe import observing
from lowcurve.outputs import ask, logits_of


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
    of: Of = "margin",
    restarts: int = 4,
    steps: int = 10,
    seed: int = 0,
) -> Manipulation:
    """Search ‖δ‖₂ = `radius` for the largest change of ∇f and for its largest turn, from `restarts` directions each.

    f is that of `lc.explanation_bound`: for "margin" the other class is the one at x, wherever δ leads.

    >>> found = manipulate_explanation(nn.Linear(3, 2), torch.rand(4, 3), None, 0.1)  # a linear f does not bend
    >>> float(found.change.max()), round(float(found.cosine.min()), 6)
    (0.0, 1.0)
    """
    checks.number(above=0, radius=radius)
    x = checked_inputs(x)
    with observing(model), torch.no_grad():
        y = checked_labels(model, x, y, of)
        other = logits_of(ask(model, x.clone())).scatter(1, y.view(-1, 1), -torch.inf).argmax(1)
    model, x = checks.copied(model).double(), x.double()
    function, labels = (_margin_between, _encoded(model, x, y, other)) if of == "margin" else (of, y)

    def largest(kind: str) -> Tensor:
        with warnings.catch_warnings(action="ignore", category=KinkWarning):  # gradients are looked at, not curvature
            found = gradient_stability(
                model, x, labels, [radius], restarts, seed, of=function, direction="adversarial", steps=steps,
                measured=kind,
            )  # fmt: skip
        return found.values[0].amax(0)

    change = largest("change")
    return Manipulation(change * _gradient_norm(model, x, labels, function), change, 1 - largest("turn"))


def _encoded(model: nn.Module, x: Tensor, y: Tensor, other: Tensor) -> Tensor:
    """Write two classes as one label, y C + c."""
    with observing(model), torch.no_grad():
        return y * logits_of(ask(model, x[:1].clone())).shape[1] + other


def _margin_between(outputs: Any, pair: Tensor) -> Tensor:
    """Return z_y − z_c for the classes of an encoded label."""
    logits = logits_of(outputs)
    y, other = pair // logits.shape[1], pair % logits.shape[1]
    return (logits.gather(1, y.view(-1, 1)) - logits.gather(1, other.view(-1, 1))).squeeze(1)


def _gradient_norm(model: nn.Module, x: Tensor, labels: Tensor, of: Of) -> Tensor:
    with observing(model), torch.enable_grad():
        leaf = x.clone().requires_grad_()
        values = scalar_function(of)(ask(model, leaf.clone()), labels)
        (gradient,) = torch.autograd.grad(values.sum(), leaf, materialize_grads=True)
    return gradient.flatten(1).norm(dim=1)

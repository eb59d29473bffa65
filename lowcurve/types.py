"""What the library's functions return: small frozen results that carry their own explanation.

An `Estimate` comes from an iteration and lies below the truth (up to rounding); a `Bound` is proven and lies
above it. They are different types so that a certificate cannot be built on an estimate by accident.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor


def _median(values: Tensor) -> str:
    return f"{float(values.nanmedian()):.3g}"


@dataclass(frozen=True)
class Estimate:
    """A lower estimate of a non-negative quantity, with the iteration's own measure of its error."""

    value: float
    residual: float
    iterations: int

    def __float__(self) -> float:
        return self.value


@dataclass(frozen=True)
class Bound:
    """A guaranteed upper bound, rounding included, and in one phrase the argument behind it."""

    value: float
    method: str

    def __float__(self) -> float:
        return self.value


@dataclass(frozen=True)
class Geometry:
    """Local geometry of a scalar function f at N points; every field is a tensor of length N.

    `curvature` is C_f(x) = ‖∇²f(x)‖₂ / (‖∇f(x)‖₂ + ε). `hessian_norm` is a lower estimate √(θ² + r²) with
    r = `residual`: some eigenvalue of the Hessian lies within r of θ, rounding included (both come from a product in
    float64; for a model that runs in its own type only, rounding is estimated). `iterations` counts the products
    of the iteration. A sample at which f is not finite has NaN everywhere and 0 iterations.
    """

    gradient_norm: Tensor
    hessian_norm: Tensor
    curvature: Tensor
    residual: Tensor
    iterations: Tensor

    def __str__(self) -> str:
        gradient, hessian, bend = map(_median, (self.gradient_norm, self.hessian_norm, self.curvature))
        count = len(self.curvature)
        return f"{count} samples, medians: gradient norm {gradient}, Hessian norm {hessian}, curvature {bend}"


@dataclass(frozen=True)
class AttackResult:
    """Adversarial examples, which of them succeed on the unchanged model, and the accuracy that is left."""

    adversarial: Tensor
    success: Tensor
    accuracy: float

    def __str__(self) -> str:
        found = int(self.success.sum())
        return f"{len(self.success)} samples: {found} adversarial, accuracy left {self.accuracy:.1%}"


@dataclass(frozen=True)
class Certificate:
    """Sound ℓ₂ radii at N points: no input within `radius` of x is classified differently from y.

    `lipschitz_radius` is the margin over the Lipschitz bound alone, never above `radius`. A sample that is
    misclassified to begin with has radius 0 and `correct` False. `details` holds the gradient norm and the
    Hessian and Lipschitz bounds of the smallest margin, by name.
    """

    radius: Tensor
    lipschitz_radius: Tensor
    margin: Tensor
    correct: Tensor
    method: str
    details: dict[str, Any]

    def __str__(self) -> str:
        right = self.radius[self.correct]
        median = f"median certified radius {_median(right)}" if len(right) else "nothing to certify"
        return f"{len(self.radius)} samples, {len(right)} right: {median}"

    @property
    def vacuous(self) -> bool:
        """Whether most correct samples are certified for less than one gray level of one pixel, 1/255."""
        return not bool(self.correct.any()) or float(self.radius[self.correct].median()) < 1 / 255

    def accuracy(self, radius: float) -> float:
        """Return the certified accuracy: the share of samples whose answer is right throughout that radius."""
        return float((self.correct & (self.radius >= radius)).double().mean())


@dataclass(frozen=True)
class ExplanationBound:
    """How much a gradient ∇f can change around N points, proven for all ‖δ‖₂ ≤ r; every field has length N.

    `change` ≥ ‖∇f(x+δ) − ∇f(x)‖₂ and `relative` ≥ ‖∇f(x+δ) − ∇f(x)‖₂ / ‖∇f(x)‖₂ are bounds from above (∞: there is
    none), `cosine` ≤ cos(∇f(x+δ), ∇f(x)) is one from below (−1: it says nothing). `details` holds a lower bound
    on ‖∇f(x)‖₂, the part of `change` that rounding may cause, and the margin's other class, by name.
    """

    change: Tensor
    relative: Tensor
    cosine: Tensor
    method: str
    details: dict[str, Any]

    @property
    def vacuous(self) -> bool:
        """Whether for most samples the gradient may turn by any angle."""
        return float(self.cosine.median()) <= 0

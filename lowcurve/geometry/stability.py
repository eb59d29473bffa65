"""How gradients and linear predictions of a model change at a distance, and what its curvature says about it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lowcurve import checks
from lowcurve.errors import UserError
from lowcurve.geometry.curvature import curvature
from lowcurve.geometry.functions import Of, checked_inputs, checked_labels, scalar_function, twice_differentiable
from lowcurve.geometry.hvp import Hessian, chunks, gradients
from lowcurve.objectives.cross_entropy import cross_entropy_per_sample, log_odds_against
from lowcurve.observe import observing
from lowcurve.outputs import logits_of
from lowcurve.random import generator

RADII = tuple(10 ** (-3 + step / 4) for step in range(9))  # 1e-3 .. 1e-1, the paper's range
DIRECTIONS = ("random", "adversarial")
CHANGES = ("change", "turn")


@dataclass(frozen=True)
class Profile:
    """A quantity of N samples at R distances in S directions, and two curves that predict it.

    `quadratic` takes f for its second-order expansion; `sharp` is the least bound that follows from a
    curvature of at most δ everywhere between x and x + ε. Where δ was not given it is the curvature at x
    itself, and `sharp` is a prediction, not a bound: nothing limits the curvature beside x. A sample that
    is not finite or has no gradient is NaN.
    """

    radii: Tensor  # (R,)
    values: Tensor  # (R, S, N)
    quadratic: Tensor  # (R, N)
    sharp: Tensor  # (R, N)

    @property
    def mean(self) -> Tensor:
        """The mean over samples and directions, (R,)."""
        return self.values.flatten(1).nanmean(dim=1)

    @property
    def median(self) -> Tensor:
        """The median over samples and directions, (R,)."""
        return self.values.flatten(1).nanmedian(dim=1).values

    @property
    def spread(self) -> Tensor:
        """The standard deviation over samples and directions, (R,)."""
        values = self.values.flatten(1)
        return (values - values.nanmean(dim=1, keepdim=True)).square().nanmean(dim=1).sqrt()

    @property
    def predicted(self) -> Tensor:
        """The mean of `quadratic` over samples, (R,)."""
        return self.quadratic.nanmean(dim=1)

    def to_dict(self) -> dict[str, list[float]]:
        """Return one list per curve, ready for JSON; `sharp` is a median, because its mean overflows early."""
        curves = {"radii": self.radii, "mean": self.mean, "median": self.median, "spread": self.spread}
        curves |= {"predicted": self.predicted, "sharp_median": self.sharp.nanmedian(dim=1).values}
        return {name: curve.tolist() for name, curve in curves.items()}


def gradient_stability(
    model: nn.Module,
    x: Tensor,
    y: Tensor | None = None,
    radii: Sequence[float] = RADII,
    samples: int = 8,
    seed: int = 0,
    *,
    of: Of = "loss",
    direction: str = "random",
    steps: int = 10,
    delta: float | Tensor | None = None,
    memory: int = 2**30,
    measured: str = "change",
) -> Profile:
    r"""Measure ‖∇f(x + ε) − ∇f(x)‖ / ‖∇f(x)‖ for `samples` perturbations ε of each norm r in `radii`.

    ε is uniform on the sphere, or with `direction="adversarial"` climbs from there in `steps` steps
    towards the largest change: random noise is the easy case, in d dimensions by a factor of up to √d.
    The change is about r·C_f(x) at worst (`quadratic`), and at most e^{rδ} − 1 where C_f ≤ δ between x
    and x + ε (`sharp`, attained by f = e^{δx}; `delta` is one number or one per sample). x + ε is not
    clipped to [0, 1]. `measured="turn"` measures 1 − cos(∇f(x + ε), ∇f(x)) in its place, which is at most
    1 − √(1 − c²) where the change is c < 1.
    """
    checks.choice(CHANGES, measured=measured)
    turn = measured == "turn"
    quantity = _Center.gradient_turn if turn else _Center.gradient_change
    r, values, local, delta = _measure(quantity, model, x, y, radii, samples, seed, of, direction, steps, delta, memory)
    predicted, limit = r * local, torch.expm1(r * delta)
    return Profile(r.squeeze(1), values, *(map(_largest_turn, (predicted, limit)) if turn else (predicted, limit)))


def _largest_turn(change: Tensor) -> Tensor:
    """Return the largest 1 − cos that a relative change of c can bring about: 1 − √(1 − c²), 2 from c = 1 on."""
    square = change.clamp(max=1).square()
    return torch.where(change < 1, square / (1 + (1 - square).sqrt()), 2.0 + 0 * change)


def local_linearity(
    model: nn.Module,
    x: Tensor,
    y: Tensor | None = None,
    radii: Sequence[float] = RADII,
    samples: int = 8,
    seed: int = 0,
    *,
    of: Of = "loss",
    direction: str = "random",
    steps: int = 10,
    delta: float | Tensor | None = None,
    memory: int = 2**30,
) -> Profile:
    r"""Measure |f(x + ε) − f(x) − ∇f(x)·ε| / ‖∇f(x)‖ for `samples` perturbations ε of each norm r in `radii`.

    The error is about r² C_f(x) / 2 at worst (`quadratic`), and at most (e^a − 1 − a)/δ ≤ δ r² e^a / 2
    with a = rδ where C_f ≤ δ between x and x + ε (`sharp`). The paper's equation (1) has δ r / 2 in its
    place, which is not a bound. Arguments as in `gradient_stability`. In float32 errors below about 1e-7
    |f| / ‖∇f‖ are rounding.
    """
    measured = _measure(_Center.linear_error, model, x, y, radii, samples, seed, of, direction, steps, delta, memory)
    r, values, local, delta = measured
    a = r * delta
    growth = torch.where(a < 1e-5, 0.5 + a / 6, (torch.expm1(a) - a) / a.square())  # (e^a − 1 − a) / a²
    return Profile(r.squeeze(1), values, r.square() * local / 2, r.square() * delta * growth)


class _Center:
    """f around the samples of one chunk, in units in which its gradient is that of q; see `local_model`."""

    def __init__(self, model: nn.Module, x: Tensor, y: Tensor, of: Of) -> None:
        self._model, self._x, self._y, self._of = model, x, y, of
        self._gradient, self._log_scale = gradients(model, x, y, of)
        size = self._gradient.norm(dim=1)
        self._size = size.masked_fill(size == 0, torch.nan)  # nothing is relative to a zero gradient
        self._value = self._evaluate(x)
        self.unit_gradient = F.normalize(self._gradient, dim=1)

    def gradient_change(self, epsilon: Tensor, climb: bool) -> tuple[Tensor, Tensor]:
        """Return the relative change at x + ε, (n,), and where to go to increase it: ∇²f(x + ε) (g' − g)."""
        moved = self._x + epsilon.view_as(self._x)
        if not climb:
            change = self._change(*gradients(self._model, moved, self._y, self._of))
            return change.norm(dim=1) / self._size, epsilon
        hessian = Hessian(self._model, moved, self._y, self._of)
        change = self._change(hessian.gradient, hessian.log_scale)
        return change.norm(dim=1) / self._size, hessian(change)

    def gradient_turn(self, epsilon: Tensor, climb: bool) -> tuple[Tensor, Tensor]:
        """Return 1 − cos at x + ε, (n,), and where to go to increase it: ∇²f(x + ε) (cos · u' − u), u = ∇f / ‖∇f‖."""
        moved = self._x + epsilon.view_as(self._x)
        hessian = Hessian(self._model, moved, self._y, self._of) if climb else None
        gradient = hessian.gradient if hessian else gradients(self._model, moved, self._y, self._of)[0]
        unit, before = F.normalize(gradient, dim=1), self.unit_gradient
        turn = (unit - before).square().sum(dim=1) / 2 + 0 * self._size
        return turn, hessian((1 - turn.nan_to_num())[:, None] * unit - before) if hessian else epsilon

    def linear_error(self, epsilon: Tensor, climb: bool) -> tuple[Tensor, Tensor]:
        """Return the relative error at x + ε, (n,), and where to go to increase it: ±(g' − g)."""
        moved = self._x + epsilon.view_as(self._x)
        slope = (self._gradient * epsilon).sum(dim=1, dtype=torch.float64)
        error = self._evaluate(moved) - self._value - slope
        uphill = epsilon
        if climb:
            change = self._change(*gradients(self._model, moved, self._y, self._of))
            uphill = change * error.sign().to(change)[:, None]
        return error.abs().to(self._size) / self._size, uphill

    def _change(self, gradient: Tensor, log_scale: Tensor) -> Tensor:
        growth = torch.exp(log_scale - self._log_scale).to(gradient)
        return growth[:, None] * gradient - self._gradient

    def _evaluate(self, x: Tensor) -> Tensor:
        """Return f / s at `x` in float64; a loss goes through its logarithm, which cannot underflow."""
        with torch.no_grad():
            outputs = twice_differentiable(self._model, x)
            if self._of != "loss":
                return scalar_function(self._of)(outputs, self._y).double()
            outputs = logits_of(outputs).double()
            m = log_odds_against(outputs, self._y)
            log_loss = torch.where(m < -40, m, cross_entropy_per_sample(outputs, self._y).log())
            return torch.exp(log_loss - self._log_scale)


# What is measured: (center, ε (n, d), whether to climb) -> values (n,) and an ascent direction (n, d).
_Quantity = Callable[[_Center, Tensor, bool], tuple[Tensor, Tensor]]


def _measure(
    quantity: _Quantity,
    model: nn.Module,
    x: Tensor,
    y: Tensor | None,
    radii: Sequence[float],
    samples: int,
    seed: int,
    of: Of,
    direction: str,
    steps: int,
    delta: float | Tensor | None,
    memory: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return radii (R, 1), the quantity (R, S, N), the curvature at x (N,) and δ (N,)."""
    checks.choice(DIRECTIONS, direction=direction)
    checks.whole(1, samples=samples, steps=steps)
    checks.numbers(above=0, radii=radii)
    checks.numbers(least=0, delta=[0.0] if delta is None else checks.one_or_more(delta))
    x = checked_inputs(x)
    if not len(x):
        raise UserError("expected at least one sample, got an empty batch")
    local = curvature(model, x, y, of=of, seed=seed, memory=memory).curvature.double()
    noise = torch.stack([torch.randn(x.shape, generator=generator(seed, k)) for k in range(samples)])
    units = F.normalize(noise.flatten(2), dim=2).to(x)  # (S, N, d)
    climbs = steps if direction == "adversarial" else 0
    with torch.inference_mode(False), observing(model):
        y = checked_labels(model, x, y, of)
        values = [
            _largest(quantity, _Center(model, x[rows], y[rows], of), units[:, rows], radii, climbs)
            for rows in chunks(model, x, y, of, vectors=8, memory=memory)
        ]
    grid = torch.tensor(list(radii), dtype=torch.float64, device=x.device).unsqueeze(1)
    limit = local if delta is None else torch.as_tensor(delta, dtype=torch.float64, device=x.device)
    return grid, torch.cat(values, dim=2), local, limit.expand_as(local)


def _largest(quantity: _Quantity, center: _Center, units: Tensor, radii: Sequence[float], climbs: int) -> Tensor:
    """Return the quantity for each radius and direction, (R, S, n), at the best point of `climbs` ascent steps.

    A climb starts between a random direction and the gradient's, because f bends most where it grows. A step goes
    to the point of the sphere that lies in the ascent direction; on a quadratic f that is power iteration, which
    ends at the eigenvector with the largest eigenvalue.
    """
    if climbs:
        units = F.normalize(units + center.unit_gradient, dim=2)
    rows = []
    for radius in radii:
        for unit in units:
            best, uphill = quantity(center, radius * unit, climbs > 0)
            for step in range(climbs):
                value, uphill = quantity(center, radius * F.normalize(uphill, dim=1), step + 1 < climbs)
                best = torch.fmax(best, value)
            rows.append(best)
    return torch.stack(rows).unflatten(0, (len(radii), len(units)))

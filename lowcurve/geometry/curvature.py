"""Gradient norm, Hessian norm and normalized curvature of a model at each sample, with their error."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lowcurve import checks
from lowcurve.geometry.functions import Of, checked_inputs, checked_labels
from lowcurve.geometry.hvp import Hessian, chunks
from lowcurve.geometry.kinks import kinks, smooth_stand_in, warn_of_kinks
from lowcurve.linalg.lanczos import Extreme, lanczos
from lowcurve.linalg.power import power_iteration
from lowcurve.observe import observing
from lowcurve.random import generator
from lowcurve.types import Geometry

ESTIMATORS = ("lanczos", "power")
# ε of the paper's C = ‖∇²f‖ / (‖∇f‖ + ε): far below any gradient that float32 can tell from zero.
EPSILON = 1e-12


def curvature(
    model: nn.Module,
    x: Tensor,
    y: Tensor | None = None,
    *,
    of: Of = "loss",
    tol: float = 1e-2,
    max_iterations: int = 30,
    method: str = "lanczos",
    memory: int = 2**30,
    seed: int = 0,
    stand_in: float | None = None,
) -> Geometry:
    r"""Measure ‖∇f(x)‖₂, ‖∇²f(x)‖₂ and C_f(x) = ‖∇²f(x)‖₂ / (‖∇f(x)‖₂ + ε) at each sample of `x`, (N, ...).

    f is the cross-entropy of the labels `y` (`of="loss"`), the `"margin"` z_y − max_{c≠y} z_c, one logit
    (an int), or any function (outputs, y) -> (N,); without `y` the model's own predictions are the
    labels. The gradient is exact. The Hessian norm comes from Lanczos iterations on Hessian-vector
    products, at most `max_iterations` per sample and fewer where the residual is at most `tol` times the
    value. `method="power"` is the paper's estimator: `max_iterations` steps of power iteration, whatever
    `tol`. About `memory` bytes are used at a time.

    Kinks (ReLU, max pooling) have no Hessian: a model that has some is measured between them, with a `KinkWarning`
    that names them. `stand_in` measures instead a copy with softplus of that β in place of ReLU, LeakyReLU, ReLU6 and
    Hardtanh; with β = 1000, as in the paper's baseline, its activations are within 0.0007 of the model's.

    The model is used in eval mode and left as it was. A sample at which f is not finite is reported as NaN.

    f = exp(3 w·x) has ∇f = 3f w and ∇²f = 9f w wᵀ, so C_f = 3 ‖w‖ everywhere:

    >>> linear = nn.Linear(4, 2)
    >>> geometry = curvature(linear, torch.rand(5, 4), of=lambda z, y: (3 * z[:, 0]).exp())
    >>> bool(torch.allclose(geometry.curvature, 3 * linear.weight[0].norm()))
    True
    """
    checks.usable(model)
    checks.choice(ESTIMATORS, method=method)
    checks.number(above=0, tol=tol, stand_in=1.0 if stand_in is None else stand_in)
    checks.whole(1, max_iterations=max_iterations, memory=memory)
    checks.whole(seed=seed)
    x = checked_inputs(x)
    if len(x) == 0:
        empty = x.new_empty(0)
        return Geometry(empty, empty, empty, empty, empty.long())
    if stand_in is not None:
        model = smooth_stand_in(model, x, stand_in)
    with torch.inference_mode(False), observing(model):
        y = checked_labels(model, x, y, of)
        warn_of_kinks(kinks(model, x[:1]), stand_in)
        parts = [
            _of_chunk(Hessian(model, x[rows], y[rows], of), tol, max_iterations, method, seed)
            for rows in chunks(model, x, y, of, vectors=3 * max_iterations // 2 + 4, memory=memory)
        ]
    return Geometry(*(torch.cat(field) for field in zip(*parts, strict=True)))


def _of_chunk(hessian: Hessian, tol: float, max_iterations: int, method: str, seed: int) -> list[Tensor]:
    """Return the five fields of `Geometry` for samples that fit into memory together."""
    like = hessian.gradient.dtype
    # One random direction for all samples, so that no result depends on the sample's place in the batch.
    direction = torch.randn(hessian.gradient.shape[1], generator=generator(seed)).to(hessian.gradient)
    start = F.normalize(hessian.gradient.nan_to_num(0, 0, 0), dim=1) + F.normalize(direction, dim=0)
    if method == "power":
        found = power_iteration(hessian, direction.expand_as(hessian.gradient), iterations=max_iterations)
    else:
        found = lanczos(hessian, start, tol=tol, max_iterations=max_iterations)
    exact = hessian if like == torch.float64 else hessian.in_float64()
    if exact is None:
        found.residual.add_(_rounding(hessian, found))
    elif exact is not hessian:
        _correct(found, exact, method)
        if method == "lanczos":
            _repeat_unsettled(found, exact, start, tol, max_iterations)
    measured = exact or hessian
    scale, slope = measured.log_scale.exp(), measured.gradient.double().norm(dim=1)
    value, residual, iterations = (field.to(slope.device) for field in (found.value, found.residual, found.iterations))
    fields = [scale * slope, scale * value, value / (slope + EPSILON), scale * residual]
    broken = ~torch.isfinite(slope + value)
    return [*(field.to(like).masked_fill(broken, torch.nan) for field in fields), iterations.masked_fill(broken, 0)]


def _rounding(hessian: Hessian, found: Extreme) -> Tensor:
    """Estimate by how much products are off in a model that runs in its own type only: ε (‖g‖ + ‖H‖) √d."""
    unit = torch.finfo(hessian.gradient.dtype).eps * math.sqrt(hessian.gradient.shape[1])
    return unit * (hessian.gradient.double().norm(dim=1).cpu() + found.value)


def _correct(found: Extreme, exact: Hessian, method: str) -> None:
    """Write the value and the residual of each vector u that was found as they are by one product in float64.

    They are √(θ² + r²), or |θ| for power iterations, and r, with θ = uᵀHu and r = ‖Hu − θu‖. The products of float32
    are off by their rounding, which the residual of the iteration does not see.
    """
    u = F.normalize(found.vector.double(), dim=1)
    product = exact(u)
    theta = (u * product).sum(dim=1)
    residual = (product - theta[:, None] * u).norm(dim=1)
    value = theta.abs() if method == "power" else torch.hypot(theta, residual)
    found.value.copy_(value.cpu().masked_fill(found.value.isnan(), torch.nan))
    found.residual.copy_(residual)


def _repeat_unsettled(found: Extreme, exact: Hessian, start: Tensor, tol: float, max_iterations: int) -> None:
    """Repeat in float64 the rows that float32 took for settled, and whose residuals are too large.

    Float32 takes for zero what is below its rounding, such as the curvature of a softplus that is almost linear there.
    """
    unsettled = (found.residual > tol * found.value) & (found.iterations < max_iterations)
    if unsettled.any():
        few = exact.restricted_to(unsettled.to(start.device))
        again = lanczos(few, start.double()[unsettled.to(start.device)], tol=tol, max_iterations=max_iterations)
        for name in ("value", "residual", "iterations"):
            getattr(found, name)[unsettled] = getattr(again, name)

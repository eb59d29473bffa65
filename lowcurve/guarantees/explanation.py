r"""How much can an explanation change near x? A bound on ‖∇f(x+δ) − ∇f(x)‖ over a ball, from slopes at x alone.

Let f be a linear function of the logits, h_i = s_i(z_i) the activations of the network, M_i = ∂f/∂h_i at x,
A_i = ∂z_i/∂x at x + δ, and D_i, D_i' the slopes s_i'(z_i) at x and at x + δ. Then, exactly,

.. math:: ∇f(x+δ) - ∇f(x) = Σ_i A_i^T (D_i' - D_i) M_i :

the linearized network at x + δ is that at x into which (D_i' − D_i) A_i u is fed at activation i. By the mean-value
theorem |s'(z_ik') − s'(z_ik)| ≤ b_ik |Δz_ik| with b_ik ≥ |s''| on the way. For a unit vector u put p_k = (A_i u)_k and
q_k = Δz_ik / ‖δ‖; a `Reach` bounds both alike, ‖·‖₂ ≤ U_i and |·_k| ≤ c_ik, and pq ≤ (p² + q²)/2, so

.. math:: ‖∇f(x+δ) - ∇f(x)‖ ≤ K ‖δ‖, \qquad
          K = Σ_i \max \{ Σ_k b_{ik} |M_{ik}| q_k : Σ_k q_k ≤ U_i², \; 0 ≤ q_k ≤ c_{ik}² \},

the number of `lowcurve.guarantees.expansion` with both signs. Proofs, and the loss: docs/explanations.md.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lowcurve import checks
from lowcurve.errors import UserError, unknown_name
from lowcurve.geometry.functions import checked_inputs, checked_labels
from lowcurve.guarantees.arithmetic import Arithmetic, arithmetic
from lowcurve.guarantees.certificate import sample_slices
from lowcurve.guarantees.expansion import Expansion, curvature_within, expand_outputs
from lowcurve.guarantees.explained_loss import LossTurn
from lowcurve.guarantees.gradient_rounding import Executed, gradient_errors
from lowcurve.guarantees.graph import refuse_difference, trace_network
from lowcurve.guarantees.network import Network
from lowcurve.guarantees.operator_norm import SLACK, UNIT
from lowcurve.guarantees.rounding import rounding
from lowcurve.guarantees.steps import Ball, Reach
from lowcurve.observe import observing
from lowcurve.outputs import returning_logits
from lowcurve.progress import track
from lowcurve.types import ExplanationBound

METHOD = "slopes at x, curvature and reach in the ball"
_FARTHEST = 1e6  # no radius is larger


@torch.inference_mode(False)  # expansions are derivatives
def explanation_bound(
    model: nn.Module, x: Tensor, y: Tensor | None, radius: float | Tensor, *, of: str | int = "margin"
) -> ExplanationBound:
    """Bound for each sample how much ∇f can change within `radius` (one number, or one per sample), in ℓ₂.

    f is what `lc.curvature` measures: "margin", z_y − z_c with the class c that is second (or first, where y is not)
    **at x** held fixed; "loss", the cross-entropy; or an int, that logit. Without labels y is what the model predicts.
    The bounds hold for the gradients of the real-valued function and for those that PyTorch computes on the processor.
    A model with kinks (ReLU, max-pooling) has no bound: ∞. One that is not understood is refused.

    A quadratic-like f of one variable, 2 s(x) with s'' ≤ β/4, bends by at most β/2 per unit:

    >>> model = nn.Sequential(nn.Linear(1, 1), nn.Softplus(beta=4.0), nn.Linear(1, 2))
    >>> for layer, values in ((model[0], [[1.0]]), (model[2], [[1.0], [-1.0]])):
    ...     _ = layer.weight.data.copy_(torch.tensor(values)), layer.bias.data.zero_()
    >>> found = explanation_bound(model.double(), torch.zeros(1, 1).double(), torch.tensor([0]), 0.1)
    >>> round(float(found.change), 4), round(float(found.relative), 4), round(float(found.cosine), 4)
    (0.2, 0.2, 0.9798)
    """
    checks.usable(model)
    x = checked_inputs(x).clone()  # one made in inference mode cannot be differentiated
    if not len(x):
        raise UserError("expected at least one sample, got an empty batch")
    checked_function(of)
    radius = _checked_radius(radius, len(x))
    with observing(model):
        y = checked_labels(model, x, y, of)
    arithmetic(model, x)  # refuse before the long work
    model = returning_logits(model, x[:1].clone())
    return explain_steps(trace_network(model, tuple(x.shape[1:]), gradients=True), model, x, y, radius, of=of)


def explain_steps(
    net: Network, model: nn.Module, x: Tensor, y: Tensor, radius: Tensor, *, of: str | int = "margin"
) -> ExplanationBound:
    """Bound the explanations of a model whose steps are known already; `radius` and labels are one per sample."""
    executed_in = arithmetic(model, x)
    if net.num_outputs < 2 and not isinstance(of, int):
        raise UserError(f"expected a model of two classes or more, got {net.num_outputs}; bound its logit: of=0")
    parts = []
    rows = sample_slices(net, net.reaches(), 1 + net.num_outputs if of == "loss" else 1, len(x))
    for part in track(rows, "bounding explanations"):
        with observing(model), torch.no_grad():
            logits = model(x[part].clone())
        parts.append(_of_batch(net, (x[part], y[part].cpu(), logits), radius[part], executed_in, of))
    return _joined(parts)


def checked_function(of: object) -> None:
    """Refuse a function whose gradient has no bound here: anything but a margin, the loss or a logit."""
    if isinstance(of, bool) or not (isinstance(of, int) or of in ("margin", "loss")):
        name = of if isinstance(of, str) else checks.shown(of)
        raise unknown_name("function to explain", name, ["margin", "loss", "an int (a logit)"])


@dataclass(frozen=True)
class _Part:
    """Bounds of one batch, (N,): change of ∇f, its rounding (once), ‖∇f(x)‖ from below, and the margin's class."""

    change: Tensor
    rounding: Tensor
    gradient: Tensor
    other: Tensor


def _of_batch(
    net: Network, batch: tuple[Tensor, Tensor, Tensor], radius: Tensor, executed_in: Arithmetic, of: str | int
) -> _Part:
    x, y, logits = batch
    other = logits.scatter(1, y.view(-1, 1), -torch.inf).argmax(1)
    turn = LossTurn(net, y, net.values(x)[-1]) if of == "loss" else None
    weight = _weights(net, y, other, of)
    at = expand_outputs(net, x, turn.outputs if turn else _combined(weight))
    if not at.smooth:
        nothing = torch.full_like(radius, torch.inf)
        return _Part(nothing, nothing, 0 * radius, other)
    ball = Ball(radius, at.blur)
    reaches = net.reaches(at.values, ball)
    errors = rounding(net, at.values, reaches, radius, executed_in)
    refuse_difference(logits.double(), at.values[-1], errors[-1].parts)
    bend = curvature_within(net, at, reaches, ball, falling=False)
    if turn:
        change, scale, doubt = turn.change(at, bend, reaches, radius, errors[-1], executed_in)
    else:
        change = _capped(radius * bend[:, 0], at, _steepest(net, reaches, weight))
        scale, doubt = torch.ones_like(radius), torch.zeros_like(radius)
    known = Executed(at, ball, reaches, errors, executed_in)
    lost = gradient_errors(net, known, slice(1, None) if turn else slice(1), scale) + doubt
    least = (at.gradients[:, 0].norm(dim=1) / SLACK - at.doubt) * (turn.scale if turn else 1.0) - doubt
    return _Part(change * SLACK, lost * SLACK, least - lost, other)


def _weights(net: Network, y: Tensor, other: Tensor, of: str | int) -> Tensor:
    """Return the coefficients of f in the logits, (N, C)."""
    one_hot = torch.eye(net.num_outputs, dtype=torch.float64)
    return one_hot[torch.full_like(y, of)] if isinstance(of, int) else one_hot[y] - one_hot[other]


def _combined(weight: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda logits: (weight * logits).sum(1, keepdim=True)


def _capped(change: Tensor, at: Expansion, steepest: Tensor) -> Tensor:
    """Both gradients are bounded as well: the one at x is known, the other at most the steepest of the ball."""
    return torch.fmin(change, at.gradient_norms[:, 0] + steepest)


def _steepest(net: Network, reaches: list[Reach], weight: Tensor) -> Tensor:
    """Bound ‖∇(w·z)‖ in the ball, (N,): by the features' norm, or logit by logit."""
    matrix, position = net.head()
    row = (weight @ matrix).norm(dim=1) + 64 * UNIT * (weight.abs() @ matrix.abs()).norm(dim=1)
    by_parts = (weight.abs() * reaches[-1].rows).sum(1)
    return torch.fmin(row * reaches[position].lipschitz, by_parts) * SLACK


def _joined(parts: list[_Part]) -> ExplanationBound:
    change, lost, least, other = (
        torch.cat([getattr(part, name) for part in parts]) for name in ("change", "rounding", "gradient", "other")
    )
    change = change + 2 * lost
    change = torch.where(change.isnan(), torch.inf, change)
    known = (least > 0) & change.isfinite()
    relative = torch.where(known, change / torch.where(known, least, 1.0) * SLACK, torch.inf)
    cosine = torch.where(relative < 1, (1 - relative.square()).clamp_min(0).sqrt() - 4 * UNIT, -1.0)
    details = {"gradient_norm": least.clamp_min(0), "rounding": 2 * lost, "other_class": other}
    return ExplanationBound(change, relative, cosine, METHOD, details)


def _checked_radius(radius: float | Tensor, samples: int) -> Tensor:
    """Return one radius per sample, in float64."""
    given = checks.one_or_more(radius)
    checks.numbers(least=0, radius=given)
    if len(given) not in (1, samples) or max(given) > _FARTHEST:
        raise UserError(f"expected one radius up to {_FARTHEST:g}, or one per sample ({samples}), got {given[:5]}")
    return torch.tensor(given, dtype=torch.float64).expand(samples).clone()

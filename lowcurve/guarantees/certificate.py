"""How far can an input move, in ℓ₂, before the network's answer can change? Sound radii, or a clear refusal.

Three numbers bound how fast a margin m = z_y − z_c can fall: g = ‖∇m(x)‖, K of `lowcurve.guarantees.expansion`, and a
Lipschitz bound L; `lowcurve.guarantees.radius` turns them into a distance, minimized over the classes c ≠ y. It is at
least m/L and at least the second-order radius. Spectral norms are bounded as the weights are, converged or not.

The promise is about the network as PyTorch runs it on the processor, not about its real-valued ideal: what rounding may
change in the logits anywhere in the ball (`lowcurve.guarantees.rounding`) is taken off every margin.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from lowcurve import checks
from lowcurve.errors import UserError
from lowcurve.guarantees.arithmetic import Arithmetic, arithmetic
from lowcurve.guarantees.expansion import Expansion, curvature_within, expand
from lowcurve.guarantees.graph import refuse_difference, trace_network
from lowcurve.guarantees.network import Network
from lowcurve.guarantees.radius import Margins
from lowcurve.guarantees.rounding import rounding
from lowcurve.guarantees.steps import Ball, Reach
from lowcurve.observe import observing
from lowcurve.outputs import ask, logits_of, returning_logits
from lowcurve.progress import track
from lowcurve.types import Certificate

_ELEMENTS = 2e7  # numbers held at once for the slopes M_i of a batch


@torch.inference_mode(False)  # expansions are derivatives
def certify(model: nn.Module, x: Tensor, y: Tensor, *, local: bool = False) -> Certificate:
    """Return for each sample a radius within which no input is classified differently from y.

    `local=True` refines the bounds inside each ball (slopes and curvatures that the ball can bring about): a larger
    radius for about ten times the work. Samples that are misclassified have radius 0.

    >>> model = nn.Linear(2, 2, bias=False)
    >>> model.weight.data = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> round(float(certify(model, torch.tensor([[1.0, 0.0]]), torch.tensor([0])).radius), 3)
    0.707
    """
    checks.usable(model)
    checks.samples(x)
    checks.labels(y, x)
    checks.flag(local=local)
    x = x.clone()  # one made in inference mode cannot be differentiated
    _check_logits(model, x)
    y = y.long().clone()
    arithmetic(model, x)  # refuse before the long work
    model = returning_logits(model, x[:1].clone())
    return certify_steps(trace_network(model, tuple(x.shape[1:])), model, x, y, local=local)


def certify_steps(net: Network, model: nn.Module, x: Tensor, y: Tensor, *, local: bool = False) -> Certificate:
    """Certify a model whose steps are known already."""
    executed_in = arithmetic(model, x)
    if not 0 <= int(y.min()) <= int(y.max()) < net.num_outputs or net.num_outputs < 2:
        raise UserError(f"expected labels from 0 to {net.num_outputs - 1}, got {int(y.min())} to {int(y.max())}")
    y, everywhere = y.cpu(), net.reaches()
    parts = []
    for rows in track(sample_slices(net, everywhere, net.num_outputs, len(y)), "certifying samples"):
        with observing(model), torch.no_grad():
            logits = model(x[rows].clone())
        parts.append(_certify_batch(net, everywhere, (x[rows], y[rows], logits), executed_in, local))
    joined = {key: torch.cat([part[key] for part in parts]) for key in parts[0]}
    return Certificate(
        radius=joined.pop("radius"),
        lipschitz_radius=joined.pop("lipschitz_radius"),
        margin=joined.pop("margin"),
        correct=joined.pop("correct"),
        method="second order in the ball" if local else "second order and Lipschitz",
        details=joined,
    )


def _check_logits(model: nn.Module, x: Tensor) -> None:
    """Run the model once on two samples: what fails there would fail later, with less to say."""
    if not len(x):
        raise UserError("expected at least one sample, got an empty batch")
    with observing(model), torch.no_grad():
        outputs = checks.run(model, x[:2], partial(ask, model))
    checks.logits(logits_of(outputs), len(x[:2]))


def pair_lipschitz(net: Network, reaches: list[Reach], y: Tensor) -> Tensor:
    """Return Lipschitz bounds of z_y − z_c, (N, C): the features' bound times the norm of the difference of rows."""
    _, position = net.head()
    rows = reaches[-1].rows.expand(len(y), -1)
    apart = rows.gather(1, y.view(-1, 1)) + rows
    return torch.minimum(net.row_distances(2.0)[y] * reaches[position].lipschitz.view(-1, 1), apart)


def _certify_batch(
    net: Network,
    everywhere: list[Reach],
    batch: tuple[Tensor, Tensor, Tensor],
    executed_in: Arithmetic,
    local: bool,
) -> dict[str, Tensor]:
    x, y, logits = batch
    expansion = expand(net, x, y)
    margins = _margins(net, expansion, everywhere, y)
    errors = partial(_errors, net, expansion, everywhere, executed_in)
    here = errors(torch.zeros_like(expansion.blur))
    refuse_difference(logits.double(), expansion.values[-1], here)
    off = partial(_off_margins, errors, y)
    radius, plain = _executed(margins, off, _pairs(here, y))
    if local and expansion.smooth:
        radius = _refined(net, expansion, margins, off, y, radius)
    left = margins.margins - _pairs(here, y)
    nearest = left.argmin(1, keepdim=True)
    return {
        "radius": radius,
        "lipschitz_radius": plain,
        "margin": left.amin(1),
        "correct": logits.argmax(1) == y,
        "gradient_norm": margins.gradient.gather(1, nearest).squeeze(1),
        "hessian_bound": margins.hessian.gather(1, nearest).squeeze(1),
        "lipschitz_bound": margins.lipschitz.gather(1, nearest).squeeze(1),
    }


def _margins(net: Network, expansion: Expansion, everywhere: list[Reach], y: Tensor) -> Margins:
    own = torch.zeros_like(expansion.margins, dtype=torch.bool).scatter_(1, y.view(-1, 1), True)
    return Margins(
        expansion.margins.masked_fill(own, torch.inf),
        expansion.gradient_norms,
        curvature_within(net, expansion, everywhere),
        pair_lipschitz(net, everywhere, y),
        own,
    )


def _errors(
    net: Network, expansion: Expansion, reaches: list[Reach], executed_in: Arithmetic, radius: Tensor
) -> Tensor:
    """Bound what rounding can do to each logit within `radius` of each sample, (N, C)."""
    return rounding(net, expansion.values, reaches, radius, executed_in)[-1].parts


def _off_margins(errors: Callable[[Tensor], Tensor], y: Tensor, radius: Tensor) -> Tensor:
    return _pairs(errors(radius), y)


def _pairs(parts: Tensor, y: Tensor) -> Tensor:
    """Both logits of a margin may err, in opposite directions."""
    return parts + parts.gather(1, y.view(-1, 1))


def _executed(margins: Margins, off: Callable[[Tensor], Tensor], here: Tensor) -> tuple[Tensor, Tensor]:
    """Return the radii, by all bounds and by L alone, of the network as it is computed.

    Rounding errors grow with the ball. For every ρ that is tried, the smaller of ρ and the radius that is left when the
    errors in the ball of radius ρ are taken off is sound; the largest of those counts. Where the errors at x itself,
    `here`, use a margin up, there is nothing to try.
    """
    trial = torch.where(margins.radius(here) > 0, margins.radius(torch.zeros_like(margins.margins)), 0.0)
    best = plain = torch.zeros_like(trial)
    for _ in range(8):
        lost = off(trial)
        plain = torch.maximum(plain, torch.minimum(trial, margins.lipschitz_radius(lost)))
        best = torch.maximum(best, torch.minimum(trial, margins.radius(lost)))
        if bool((best >= trial / 2).all()):
            break
        trial = torch.where(best >= trial / 2, trial, trial / 4)
    return torch.maximum(best, plain), plain


def _refined(
    net: Network,
    expansion: Expansion,
    margins: Margins,
    off: Callable[[Tensor], Tensor],
    y: Tensor,
    radius: Tensor,
) -> Tensor:
    """Search each sample's largest ρ such that bounds valid in the ball of radius ρ certify ρ.

    Every ρ that is tried is sound on its own: what the bounds of its ball certify, and not beyond the ball. Rounding is
    bounded once, in the largest ball that is tried.
    """
    low, high = radius, 4 * radius
    lost = off(high)
    for _ in range(10):
        trial = (low + high) / 2
        ball = Ball(trial, expansion.blur)
        reaches = net.reaches(expansion.values, ball)
        hessian, lipschitz = curvature_within(net, expansion, reaches, ball), pair_lipschitz(net, reaches, y)
        reached = replace(margins, hessian=hessian, lipschitz=lipschitz).radius(lost)
        radius = torch.maximum(radius, torch.minimum(trial, reached))
        low, high = torch.where(reached >= trial, trial, low), torch.where(reached >= trial, high, trial)
    return radius


def sample_slices(net: Network, reaches: list[Reach], outputs: int, samples: int) -> list[slice]:
    """Cut the samples so that the slopes of so many outputs of one batch fit in memory."""
    per_sample = outputs * sum(reach.rows[0].numel() for reach in reaches)
    size = max(1, min(64, int(_ELEMENTS / per_sample)))
    return [slice(start, start + size) for start in range(0, samples, size)]

r"""How far can an input move, in ℓ₂, before the network's answer can change? Sound radii, or a clear refusal.

At distance t from x the margin m = z_y − z_c is at least m − g t − K t²/2 (g = ‖∇m(x)‖, K of
`lowcurve.guarantees.expansion`), and from any point on it falls no faster than a Lipschitz bound L. The best of both
is ∫₀ᵗ min(g + K s, L) ds, and the answer is safe until that has used m up:

.. math:: r = \frac{2m}{g + \sqrt{g^2 + 2Km}} \text{ while } r ≤ t_0 = \frac{L-g}{K},
          \text{ afterwards } t_0 + \frac{m - g t_0 - K t_0^2/2}{L},

minimized over the classes c ≠ y. It is at least m/L and at least the second-order radius. Spectral norms are
bounded as the weights are, converged or not.
"""

import torch
from torch import Tensor, nn

from lowcurve.errors import UserError
from lowcurve.guarantees.expansion import Expansion, curvature, expand
from lowcurve.guarantees.graph import network
from lowcurve.guarantees.steplist import Network
from lowcurve.guarantees.steps import Ball, Reach
from lowcurve.modes import observing
from lowcurve.progress import track
from lowcurve.types import Certificate

# Float32 evaluation moves a logit by a few units in the last place per layer. What is seen at x, 16-fold, and 1e-5 of
# the largest logit are taken off every margin to cover what may happen at other points.
_SEEN, _RELATIVE = 16.0, 1e-5
_GRADIENT_SLACK = 1 + 1e-6
_ELEMENTS = 2e7  # numbers held at once for the slopes M_i of a batch


def certify(model: nn.Module, x: Tensor, y: Tensor, *, local: bool = False) -> Certificate:
    """Return for each sample a radius within which no input is classified differently from y.

    `local=True` refines the bounds inside each ball (slopes and curvatures that the ball can bring about): a larger
    radius for about ten times the work. Samples that are misclassified have radius 0.

    >>> model = nn.Linear(2, 2, bias=False)
    >>> model.weight.data = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> round(float(certify(model, torch.tensor([[1.0, 0.0]]), torch.tensor([0])).radius), 3)
    0.707
    """
    if len(x) != len(y) or y.ndim != 1 or not len(y):
        raise UserError(f"expected one label per input, got inputs {tuple(x.shape)} and labels {tuple(y.shape)}")
    net = network(model, tuple(x.shape[1:]))
    if not 0 <= int(y.min()) <= int(y.max()) < net.num_outputs or net.num_outputs < 2:
        raise UserError(f"expected labels from 0 to {net.num_outputs - 1}, got {int(y.min())} to {int(y.max())}")
    everywhere = net.reaches()
    batches = track(_batches(net, everywhere, x, y), "certifying samples")
    parts = [_certify_batch(model, net, everywhere, *pair, local=local) for pair in batches]
    joined = {key: torch.cat([part[key] for part in parts]) for key in parts[0]}
    return Certificate(
        radius=joined.pop("radius"),
        lipschitz_radius=joined.pop("lipschitz_radius"),
        margin=joined.pop("margin"),
        correct=joined.pop("correct"),
        method="second order in the ball" if local else "second order and Lipschitz",
        details=joined,
    )


def combined_radius(margin: Tensor, gradient: Tensor, hessian: Tensor, lipschitz: Tensor) -> Tensor:
    """Return the t at which ∫₀ᵗ min(g + K s, L) ds = m, elementwise; K may be infinite, m below 0 gives 0.

    >>> one = torch.tensor(1.0)
    >>> float(combined_radius(one, 0 * one, 2 * one, 100 * one))
    1.0
    >>> float(combined_radius(one, one, torch.inf * one, 2 * one))
    0.5
    """
    margin = margin.clamp_min(0)
    gradient = torch.minimum(gradient, lipschitz)
    smooth = hessian.isfinite()
    k = torch.where(smooth, hessian, 1.0)
    until = (lipschitz - gradient) / k  # where the slope bound g + K t meets L; division by 0 means never
    until = torch.where(smooth, torch.where(k > 0, until, torch.inf), 0.0)
    quadratic = 2 * margin / (gradient + (gradient.square() + 2 * k * margin).sqrt())
    reached = torch.where(until.isfinite(), until, 0.0)
    beyond = reached + (margin - gradient * reached - torch.where(smooth, k, 0.0) * reached.square() / 2) / lipschitz
    radius = torch.where(smooth & (quadratic <= until), quadratic, beyond)
    return torch.where(margin > 0, radius, 0.0)


def pair_lipschitz(net: Network, reaches: list[Reach], y: Tensor) -> Tensor:
    """Return Lipschitz bounds of z_y − z_c, (N, C): the features' bound times the norm of the difference of rows."""
    matrix, position = net.head()
    distances = torch.cdist(matrix, matrix, compute_mode="donot_use_mm_for_euclid_dist")
    rows = reaches[-1].rows.expand(len(y), -1)
    apart = rows.gather(1, y.view(-1, 1)) + rows
    return torch.minimum(distances[y] * reaches[position].lipschitz.view(-1, 1), apart)


def _certify_batch(
    model: nn.Module, net: Network, everywhere: list[Reach], x: Tensor, y: Tensor, local: bool
) -> dict[str, Tensor]:
    y = y.cpu()
    expansion = expand(net, x, y)
    margins = expansion.margins - _rounding(model, x, expansion.values[-1])
    own = torch.zeros_like(margins, dtype=torch.bool).scatter_(1, y.view(-1, 1), True)
    margins = margins.masked_fill(own, torch.inf)
    lipschitz = pair_lipschitz(net, everywhere, y)
    hessian = curvature(net, expansion, everywhere)
    gradient = expansion.gradient_norms * _GRADIENT_SLACK
    plain = _smallest(margins / lipschitz, own)
    radius = torch.maximum(plain, _smallest(combined_radius(margins, gradient, hessian, lipschitz), own))
    if local and expansion.smooth:
        radius = _refined(net, expansion, (margins, gradient, own), y, radius)
    nearest = margins.argmin(1, keepdim=True)
    return {
        "radius": radius,
        "lipschitz_radius": plain,
        "margin": margins.amin(1),
        "correct": expansion.margins.masked_fill(own, torch.inf).amin(1) > 0,
        "gradient_norm": gradient.gather(1, nearest).squeeze(1),
        "hessian_bound": hessian.gather(1, nearest).squeeze(1),
        "lipschitz_bound": lipschitz.gather(1, nearest).squeeze(1),
    }


def _refined(
    net: Network, expansion: Expansion, at: tuple[Tensor, Tensor, Tensor], y: Tensor, radius: Tensor
) -> Tensor:
    """Search each sample's largest ρ such that bounds valid in the ball of radius ρ certify ρ.

    Every ρ that is tried is sound on its own: what the bounds of its ball certify, and not beyond the ball.
    """
    margins, gradient, own = at
    low, high = radius, torch.where(radius > 0, 4 * radius, 0.0)
    for _ in range(10):
        trial = (low + high) / 2
        ball = Ball(trial)
        reaches = net.reaches(expansion.values, ball)
        hessian = curvature(net, expansion, reaches, ball)
        lipschitz = pair_lipschitz(net, reaches, y)
        reached = _smallest(combined_radius(margins, gradient, hessian, lipschitz), own)
        radius = torch.maximum(radius, torch.minimum(trial, reached))
        low, high = torch.where(reached >= trial, trial, low), torch.where(reached >= trial, high, trial)
    return radius


def _smallest(radii: Tensor, own: Tensor) -> Tensor:
    """The smallest radius over the other classes; 0 where a margin is not positive."""
    return radii.masked_fill(own, torch.inf).amin(1).clamp_min(0)


def _rounding(model: nn.Module, x: Tensor, exact: Tensor) -> Tensor:
    """Return what float32 may take off a margin, (N, 1)."""
    with observing(model), torch.no_grad():
        logits = model(x)
    seen = (logits.cpu().double() - exact).abs().amax(1, keepdim=True)
    size = exact.abs().amax(1, keepdim=True)
    return 2 * (_SEEN * seen + _RELATIVE * size)


def _batches(net: Network, reaches: list[Reach], x: Tensor, y: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Cut the samples so that the slopes of one batch fit in memory."""
    per_sample = net.num_outputs * sum(reach.rows[0].numel() for reach in reaches)
    size = max(1, min(64, int(_ELEMENTS / per_sample)))
    return list(zip(x.split(size), y.split(size), strict=True))

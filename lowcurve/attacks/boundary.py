"""How near is the decision boundary that an attack can find? The other side of a certificate.

A certified radius lies below the true distance to the boundary, what is found here above it. No box is imposed: a
certificate speaks of all inputs, so it is tested against all of them.
"""

import torch
from torch import Tensor, nn

from lowcurve.attacks.losses import misclassified
from lowcurve.observe import observing
from lowcurve.outputs import classifier


def boundary_distance(model: nn.Module, x: Tensor, y: Tensor, *, steps: int = 20, targets: int = 9) -> Tensor:
    """Return for each sample the smallest ‖x' − x‖₂ found such that x' is not classified as y; ∞ where none was.

    For each of the `targets` likeliest wrong classes c, sequential linearization of m = z_y − z_c: from x + δ go to
    the point nearest to x on the tangent of the boundary, δ ← (∇m·δ − m) ∇m / ‖∇m‖². Every point on the way that is
    misclassified counts, and the nearest of each class is drawn back towards x by bisection.

    >>> model = nn.Linear(2, 2, bias=False)
    >>> _ = model.weight.data.copy_(torch.eye(2))
    >>> float(boundary_distance(model, torch.tensor([[0.9, 0.1]]), torch.tensor([0])))  # 0.8 / √2
    0.565...
    """
    model = classifier(model)
    with observing(model):
        with torch.no_grad():
            logits = model(x)
        ranked = logits.scatter(1, y.view(-1, 1), -torch.inf).argsort(1, descending=True)
        wrong = logits.argmax(1) != y
        best = torch.where(wrong, 0.0, torch.inf).double()
        for target in ranked[:, : min(targets, logits.shape[1] - 1)].unbind(1):
            best = torch.minimum(best, _towards(model, x, y, target, steps))
    return best


def _towards(model: nn.Module, x: Tensor, y: Tensor, target: Tensor, steps: int) -> Tensor:
    """Follow the linearized boundary to one class per sample; return the smallest distance that deceives."""
    delta, nearest = torch.zeros_like(x), torch.zeros_like(x)
    best = torch.full((len(x),), torch.inf, dtype=torch.float64, device=x.device)
    rows = torch.arange(len(x), device=x.device)
    for _ in range(steps):
        moved = (x + delta).requires_grad_()
        logits = model(moved)
        margin = logits[rows, y] - logits[rows, target]
        (gradient,) = torch.autograd.grad(margin.sum(), moved)
        length = delta.flatten(1).double().norm(dim=1)
        better = misclassified(logits, y) & (length < best)
        best = torch.where(better, length, best)
        nearest = torch.where(_wide(better, x), delta, nearest)
        slope = gradient.flatten(1)
        size = slope.square().sum(1).clamp_min(torch.finfo(slope.dtype).tiny)
        along = ((slope * delta.flatten(1)).sum(1) - margin.detach()) / size
        delta = _wide(1.0005 * along, x) * gradient  # a little beyond, so that the last step deceives
    return _drawn_back(model, x, y, nearest, best)


@torch.no_grad()
def _drawn_back(model: nn.Module, x: Tensor, y: Tensor, delta: Tensor, best: Tensor) -> Tensor:
    """Shorten each deceiving δ by bisection as long as it deceives."""
    low, high = torch.zeros_like(best), torch.ones_like(best)
    for _ in range(15):
        middle = (low + high) / 2
        deceived = misclassified(model(x + _wide(middle.to(x.dtype), x) * delta), y)
        low, high = torch.where(deceived, low, middle), torch.where(deceived, middle, high)
    # the length is that of the point that was tried, rounding of x + tδ included
    point = x + _wide(high.to(x.dtype), x) * delta
    length = (point.double() - x.double()).flatten(1).norm(dim=1)
    return torch.where(best.isfinite(), length, best)


def _wide(values: Tensor, like: Tensor) -> Tensor:
    return values.view(-1, *(1,) * (like.dim() - 1))

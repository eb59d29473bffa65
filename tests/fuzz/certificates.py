"""Oracles: does anything within a certified radius contradict the certificate? Grids, random points, attacks look."""

import math

import torch
from torch import Tensor, nn

import lowcurve as lc
from lowcurve.attacks import ATTACKS
from lowcurve.errors import UserError
from lowcurve.objectives.cross_entropy import cross_entropy_per_sample
from tests.fuzz.build import Case
from tests.fuzz.findings import Finding

_ANGLES, _RINGS, _DIRECTIONS = 360, 24, 60
_STEPS = 6  # rings of gradients
# The project's strongest attacks, with few steps: the networks are small.
_ATTACKS = {name: steps for name, steps in {"apgd-t": 20, "pgd-margin": 20, "fab-t": 20}.items() if name in ATTACKS}
_INSIDE = 1 - 1e-6  # a point at the radius itself may be rounded to the outside


def certificates(case: Case) -> None:
    """No point within the radius has another answer, in the model's own arithmetic."""
    model = case.subject().eval()
    with torch.no_grad():
        y = model(case.x.clone()).argmax(1)
    for local in (False, True):
        found = lc.certify(model, case.x, y, local=local)
        for k in range(len(y)):
            radius = float(found.radius[k])
            if not radius >= float(found.lipschitz_radius[k]) >= 0:
                raise Finding(f"the radius is {radius}, the Lipschitz radius {float(found.lipschitz_radius[k])}")
            if radius > 0 and bool(found.correct[k]):
                _searched(model, case.x[k], int(y[k]), min(radius, 1e6) * _INSIDE, case.recipe["seed"])
        _attacked(model, case.x, y, found.radius)


def _searched(model: nn.Module, x: Tensor, label: int, radius: float, seed: int) -> None:
    """Classify a grid of the ball, in 2-D, or random points of it, and points along the gradient."""
    directions = _directions(model, x, label, seed)
    lengths = radius * torch.linspace(1, 0, _RINGS + 1, dtype=torch.float64)[:-1]
    points = x.double() + (lengths.view(-1, 1, *(1,) * x.dim()) * directions).flatten(0, 1)
    points = points.to(x.dtype)
    inside = (points.double() - x.double()).flatten(1).norm(dim=1) <= radius / _INSIDE
    points = points[inside]
    with torch.no_grad():
        wrong = torch.cat([model(part.clone()).argmax(1) != label for part in points.split(1024)])
    if bool(wrong.any()):
        nearest = float((points[wrong].double() - x.double()).flatten(1).norm(dim=1).min())
        raise Finding(f"certified for {radius:.6g}, but the answer changes at distance {nearest:.6g}")


def _directions(model: nn.Module, x: Tensor, label: int, seed: int) -> Tensor:
    """Return unit vectors: all angles in 2-D, random ones elsewhere, and those along which a margin falls."""
    if x.numel() == 2:
        angles = torch.linspace(0, 2 * math.pi, _ANGLES + 1, dtype=torch.float64)[:-1]
        around = torch.stack([angles.cos(), angles.sin()], 1)
    else:
        generator = torch.Generator().manual_seed(seed)
        around = torch.randn(_DIRECTIONS, x.numel(), generator=generator, dtype=torch.float64)
    point = x[None].clone().requires_grad_()
    logits = model(point.clone())[0]
    for c in range(len(logits)):
        if c != label and logits.requires_grad:
            (slope,) = torch.autograd.grad(logits[c] - logits[label], point, retain_graph=True)
            around = torch.cat([around, slope.flatten()[None].double()])
    around = around[around.norm(dim=1) > 0]
    return (around / around.norm(dim=1, keepdim=True)).view(-1, *x.shape)


def _attacked(model: nn.Module, x: Tensor, y: Tensor, radius: Tensor) -> None:
    for name, steps in _ATTACKS.items():
        try:
            eps = (radius * _INSIDE).clamp_max(1e6).to(x.dtype)
            found = lc.attack(model, x, y, name, eps=eps, steps=steps)
        except UserError:  # attacks refuse some models that certificates know, such as two identical logits
            continue
        distance = (found.adversarial.double() - x.double()).flatten(1).norm(dim=1)
        broken = found.success & (distance <= radius)
        if bool(broken.any()):
            k = int(broken.nonzero()[0])
            raise Finding(f"certified for {float(radius[k]):.6g}, but {name} succeeds at {float(distance[k]):.6g}")


def explanations(case: Case) -> None:
    """No gradient of a logit or of the loss within the radius is further from that at x than its bound."""
    model = case.subject().eval()
    of = (0, "loss")[case.recipe["seed"] % 2]
    radius = (0.01, 0.3, 3.0)[case.recipe["seed"] % 3]
    found = lc.explanation_bound(model, case.x, case.y, radius, of=of)
    for k, x in enumerate(case.x):
        directions = _directions(model, x, int(case.y[k]), case.recipe["seed"])[::4]
        lengths = radius * _INSIDE * torch.linspace(1, 0, _STEPS + 1, dtype=torch.float64)
        points = (x.double() + (lengths.view(-1, 1, *(1,) * x.dim()) * directions).flatten(0, 1)).to(x.dtype)
        points = points[(points.double() - x.double()).flatten(1).norm(dim=1) <= radius]
        slopes = _slopes(model, torch.cat([x[None], points]), int(case.y[k]), of)
        center, around = slopes[0], slopes[1:]
        worst = float((around - center).norm(dim=1).max())
        turned = float(torch.cosine_similarity(around, center[None], eps=0.0).nan_to_num(1.0).clamp(-1, 1).min())
        if worst > float(found.change[k]) or worst > float(found.relative[k] * center.norm()) * (1 + 1e-9):
            raise Finding(f"a gradient changes by {worst:.6g}, its bound is {float(found.change[k]):.6g}")
        if turned < float(found.cosine[k]) - 1e-9:
            raise Finding(f"a gradient turns to cosine {turned:.6g}, its bound is {float(found.cosine[k]):.6g}")


def _slopes(model: nn.Module, points: Tensor, label: int, of: str | int) -> Tensor:
    """Return the gradients at each point, (points, inputs), as PyTorch computes them."""
    points = points.requires_grad_()
    logits = model(points.clone())
    values = logits[:, 0] if of == 0 else cross_entropy_per_sample(logits, torch.full((len(points),), label))
    if not values.requires_grad:
        return torch.zeros_like(points).flatten(1).double()
    return torch.autograd.grad(values.sum(), points, materialize_grads=True)[0].flatten(1).double()

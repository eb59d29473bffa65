"""Oracle: is what an attack returns inside ball and box, finite, and as successful as it says?"""

import math

import torch
from torch import nn

import lowcurve as lc
from lowcurve.attacks import ATTACKS
from lowcurve.types import AttackResult
from tests.fuzz.build import Case
from tests.fuzz.findings import Finding

_RADII = (0.1, 0.0, 1e-6, 1e-3, 0.7, 50.0)
_STEPS = 7


def attacks(case: Case) -> None:
    """Every attack, in ℓ₂ and in ℓ∞."""
    seed = case.recipe["seed"]
    model = case.subject().eval()
    for norm in (2, math.inf):
        for name in ATTACKS:
            eps = _RADII[(seed + len(name)) % len(_RADII)]
            steps = 1 if name == "auto" else min(_STEPS, ATTACKS[name].steps)  # one step of the suite is 50 queries
            found = lc.attack(model, case.x, case.y, name, eps=eps, norm=norm, steps=steps, restarts=1 + seed % 2)
            _check(case, model, found, eps, norm, f"{name} at ε = {eps:g} in ℓ{norm}")


def _check(case: Case, model: nn.Module, found: AttackResult, eps: float, norm: float, what: str) -> None:
    points = found.adversarial
    if points.shape != case.x.shape or points.dtype != case.x.dtype:
        raise Finding(f"{what}: returned {points.dtype} of shape {tuple(points.shape)}")
    if not bool(points.isfinite().all()):
        raise Finding(f"{what}: points are not finite")
    distance = torch.linalg.vector_norm((points.double() - case.x.double()).flatten(1), norm, dim=1)
    unit = torch.finfo(case.x.dtype).eps * math.sqrt(case.x[0].numel())  # coordinates are rounded, in [0, 1]
    if bool((distance > eps * (1 + 1e-5) + unit).any()):
        raise Finding(f"{what}: a point is {float(distance.max()):.6g} away")
    if bool((points < 0).any() | (points > 1).any()):
        raise Finding(f"{what}: a point is outside [0, 1]")
    with torch.no_grad():
        logits = model(points.clone())
        clean = model(case.x.clone())
    wrong = (logits.argmax(1) != case.y) & logits.isfinite().all(1)
    if bool((wrong != found.success).any()):
        raise Finding(f"{what}: success is {found.success.tolist()}, evaluated again {wrong.tolist()}")
    if abs(found.accuracy - float((~found.success).double().mean())) > 1e-6:
        raise Finding(f"{what}: accuracy {found.accuracy} does not follow from the successes")
    if bool(((clean.argmax(1) != case.y) & ~wrong).any()):
        raise Finding(f"{what}: a sample that was misclassified before counts as withstanding")

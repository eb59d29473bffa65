"""What does one β for all activations do to a trained network, without training? Accuracy, curvature and attacks.

A larger β is nearer to ReLU, a smaller one is smoother. Smoothness alone can blind gradient attacks without making a
network robust: so attacks with and without gradients stand side by side, with the flags that tell masking.
"""

import copy
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lowcurve.attacks.evaluate import evaluate
from lowcurve.attacks.table import WORST, Evaluation
from lowcurve.compat import BATCH_NORMS
from lowcurve.data.dataset import Split
from lowcurve.data.loader import batches
from lowcurve.errors import UserError
from lowcurve.geometry.dataset import measure
from lowcurve.geometry.kinks import STAND_IN, KinkWarning, kinks, smooth_stand_in
from lowcurve.layers.traits import learned_logs
from lowcurve.surgery.convert import convert

SWEPT = ("pgd", "apgd-t", "square")
_BATCH = 250


@dataclass(frozen=True)
class Sweep:
    """What is measured at each β: `attacks` at one `radius` on `attacked` samples, curvature on as many."""

    test: Split
    radius: float
    attacks: tuple[str, ...] = SWEPT
    steps: Mapping[str, int] | None = None
    norm: float = 2
    seed: int = 0
    statistics: Split | None = None  # training samples from which batch norms estimate their statistics anew
    augmentation: tuple[str, ...] = ()  # how training varied them: statistics of other images are others
    folder: Path | None = None


@dataclass(frozen=True)
class Point:
    """One row: the network at this β, None for the network as it is."""

    beta: float | None
    accuracy: float
    margin_curvature: float  # medians
    loss_curvature: float
    robust: dict[str, float]  # accuracy under each attack, and under the worst of them
    low: float  # 95 % interval of the last
    high: float
    flags: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the row for JSON."""
        return asdict(self)


def sweep(model: nn.Module, betas: Sequence[float], settings: Sweep) -> list[Point]:
    """Measure the network as it is, then at each β; the given model is left alone."""
    points = [_point(model, None, settings)]
    for beta in betas:
        changed = with_beta(model, settings.test.batch(slice(2))[0], beta)
        if settings.statistics is not None:
            estimate_statistics(changed, settings.statistics, settings.augmentation)
        points.append(_point(changed, beta, settings))
    return points


def with_beta(model: nn.Module, example: Tensor, beta: float) -> nn.Module:
    """Return a copy whose activations are centered softplus of this β: its own where it learns β, else converted."""
    logs = learned_logs(model, "beta")
    if not logs:
        device = next((p.device for p in model.parameters()), torch.device("cpu"))
        changed, report = convert(
            model, example.to(device), activation=True, batchnorm=False, spectral=False, init_beta=beta
        )
        if not learned_logs(changed, "beta"):
            raise UserError(f"expected a network with activations that softplus can replace, got none; {report}")
        return changed.eval()
    changed = copy.deepcopy(model).eval()
    for log in learned_logs(changed, "beta").values():
        if not isinstance(log, nn.Parameter):
            raise UserError("expected activations with β as a parameter of its own (log β); set theirs yourself")
        nn.init.constant_(log, math.log(beta))
    return changed


@torch.no_grad()
def estimate_statistics(model: nn.Module, split: Split, augmentation: Sequence[str] = ()) -> None:
    """Give every batch norm the mean and variance of what it sees over `split`; nothing else changes."""
    norms = [module for module in model.modules() if isinstance(module, BATCH_NORMS)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the plain mean over batches
        norm.train()
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    for x, _ in batches(split, _BATCH, seed=0, epoch=0, augmentation=augmentation, device=device):
        model(x)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    model.eval()


def _point(model: nn.Module, beta: float | None, settings: Sweep) -> Point:
    example = settings.test.batch(slice(1))[0]
    measured = smooth_stand_in(model, example, STAND_IN) if kinks(model, example) else model
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KinkWarning)  # of max pooling, which no softplus stands for
        geometry = measure(measured, settings.test, seed=settings.seed, description=f"β = {_shown(beta)}: measuring")
    found = evaluate(
        model, settings.test, settings.attacks, [settings.radius], norm=settings.norm, steps=settings.steps,
        seed=settings.seed, folder=settings.folder / f"beta-{_shown(beta)}" if settings.folder else None,
    )  # fmt: skip
    worst = found.cell(WORST if len(found.attacks) > 1 else found.attacks[0], settings.radius)
    return Point(
        beta,
        geometry.accuracy,
        geometry.summary("margin_curvature").median,
        geometry.summary("curvature").median,
        {**_accuracies(found, settings.radius), WORST: worst.accuracy},
        worst.low,
        worst.high,
        found.flags,
    )


def _accuracies(found: Evaluation, radius: float) -> dict[str, float]:
    return {name: found.accuracy(name, radius) for name in found.attacks}


def _shown(beta: float | None) -> str:
    return "as-it-is" if beta is None else f"{beta:g}"

"""How does a trained network become smooth in few steps? β and γ start high and are led down; λ grows with haste."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from lowcurve.errors import UserError
from lowcurve.layers.traits import learned_logs, learned_parameters
from lowcurve.methods import FirstValues
from lowcurve.training.config import Config
from lowcurve.training.optimizer import learning_rate
from lowcurve.training.settings import TrainConfig

FALL = 0.75  # share of training in which the ceilings fall; in the rest weights settle
_READINGS = 1000  # at which a schedule is summed
_PAPER_STEPS = 200 * 391  # epochs, and batches of 128 in 50,000 images


class Ceilings:
    r"""Upper limits of β and γ that fall geometrically, :math:`c(p) = a (b/a)^{\min(1, p / 0.75)}`.

    a is `method.init_beta` (or `init_gamma`), b `train.final_beta` (`final_gamma`), p the share of steps that is done.
    Below the ceiling β and γ are learned as ever. At a high β a converted network is what it was.
    """

    def __init__(self, model: nn.Module, config: Config) -> None:
        self.falls: list[tuple[float, float, list[Tensor]]] = []
        for kind in ("beta", "gamma"):
            final = getattr(config.train, f"final_{kind}")
            if final is not None:
                self.falls.append((getattr(config.method, f"init_{kind}"), final, _logs(model, kind)))

    @torch.no_grad()
    def lower(self, progress: float) -> None:
        """Bring β and γ below where the ceilings are now."""
        for first, final, logs in self.falls:
            ceiling = ceiling_at(first, final, progress)
            for log in logs:
                log.clamp_(max=math.log(ceiling))


def ceiling_at(first: float, final: float, progress: float) -> float:
    """Return where a ceiling is that falls from `first` to `final`.

    >>> [round(ceiling_at(100.0, 1.0, share), 3) for share in (0.0, 0.375, 0.75, 1.0)]
    [100.0, 10.0, 1.0, 1.0]
    """
    return first * (final / first) ** min(1.0, progress / FALL)


def _logs(model: nn.Module, kind: str) -> list[Tensor]:
    logs = list(learned_logs(model, kind).values())
    if not logs:
        raise UserError(
            f"train.final_{kind} leads the learned {kind} of a network down, and this one has none; leave it out, or "
            "choose a method with it, such as lcnn"
        )
    if not all(isinstance(log, nn.Parameter) for log in logs):
        raise UserError(f"train.final_{kind} needs {kind} as a parameter of its own (log {kind}); leave it out")
    return logs


def train_only_smoothness(model: nn.Module) -> None:
    """Let nothing but β and γ learn; running statistics still follow what the layers see."""
    chosen = learned_parameters(model)
    if not chosen:
        raise UserError(
            "train.only='smoothness' trains β and γ, and this network learns neither; choose a method with them, such "
            "as lcnn or csoftplus-only"
        )
    for parameter in model.parameters():
        parameter.requires_grad_(parameter in chosen)


def coefficients(config: Config, samples: int) -> dict[str, Any]:
    """Return the method's numbers for a training on so many samples.

    With `train.scale_penalties` λβ and λγ are multiplied by how much longer the paper's way is. Under its penalty alone
    log γ moves by λγ Σ lr / (1 − momentum) in all, which is 0.6 there and next to nothing in a short training. β falls
    to 1 / (1/β₀ + λβ Σ lr / (1 − momentum)), from 5 to 0.16 there; λβ is also divided by how much larger than 5 it
    begins, so that it falls by the same factor.
    """
    numbers = config.method.coefficients
    if not config.train.scale_penalties:
        return numbers
    steps = config.train.epochs * math.ceil(samples / config.train.batch_size)
    factor = max(1.0, way(TrainConfig(), _PAPER_STEPS) / way(config.train, steps))
    smaller = FirstValues().init_beta / config.method.init_beta
    scales = {"lambda_beta": factor * smaller, "lambda_gamma": factor}
    return {**numbers, **{key: scale * numbers[key] for key, scale in scales.items()}}


def way(settings: TrainConfig, steps: int) -> float:
    """Return Σ lr / (1 − momentum) over a training, how far a constant gradient of 1 would take a parameter.

    >>> round(way(TrainConfig(), _PAPER_STEPS))
    59725
    """
    rates = [learning_rate(settings, reading / _READINGS) for reading in range(_READINGS)]
    return steps * sum(rates) / _READINGS / (1 - settings.momentum)

"""How does a step move the weights? SGD or AdamW, decay where it belongs, and a schedule for the rate."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from lowcurve import checks
from lowcurve.compat import NORMS_WITH_STATISTICS
from lowcurve.layers.traits import learned_parameters
from lowcurve.training.settings import TrainConfig

_NORMS = (*NORMS_WITH_STATISTICS, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
_FIRST = 0.01  # share of lr at which a warm-up begins

Groups = list[dict[str, Any]]
OPTIMIZERS: dict[str, Callable[[Groups, TrainConfig], torch.optim.Optimizer]] = {
    "sgd": lambda groups, settings: torch.optim.SGD(groups, lr=settings.lr, momentum=settings.momentum),
    "adamw": lambda groups, settings: torch.optim.AdamW(groups, lr=settings.lr, betas=(settings.momentum, 0.999)),
}


def parameter_groups(model: nn.Module, weight_decay: float = 5e-4) -> Groups:
    """Return two groups for an optimizer of yours: weights decay; β, γ, biases and norm weights do not.

    β and γ are paid for by `lc.curvature_penalty`; decay of their logarithms would pull them to 1. Every parameter that
    needs a gradient is in one group. `lc.train` follows the paper instead, where all but β and γ decays.

    >>> net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    >>> [len(group["params"]) for group in parameter_groups(net)]
    [1, 3]
    >>> optimizer = torch.optim.AdamW(parameter_groups(net, weight_decay=1e-2), lr=1e-3)
    """
    checks.modules(model=model)
    checks.number(least=0, weight_decay=weight_decay)
    kept = learned_parameters(model)
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.ndim <= 1 or name == "bias" or isinstance(module, _NORMS):
                kept.add(parameter)
    return _groups(model, kept, weight_decay)


def make_optimizer(model: nn.Module, settings: TrainConfig) -> torch.optim.Optimizer:
    """Return the optimizer that `settings` names; weight decay on everything but β and γ, as in the paper."""
    groups = [group for group in _groups(model, learned_parameters(model), settings.weight_decay) if group["params"]]
    return OPTIMIZERS[settings.optimizer](groups, settings)


def _groups(model: nn.Module, kept: set[nn.Parameter], weight_decay: float) -> Groups:
    """Split what is trained into what decays and what is `kept` from it, in the model's order."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [
        {"params": [p for p in trained if p not in kept], "weight_decay": weight_decay},
        {"params": [p for p in trained if p in kept], "weight_decay": 0.0},
    ]


def learning_rate(settings: TrainConfig, progress: float) -> float:
    """Return the rate of the step before which the share `progress` of all steps is done.

    "steps": lr · decayⁿ where n milestones have passed. "cosine": lr (1 + cos πq) / 2, where q runs from 0 to 1 after
    the warm-up. In the warm-up it rises along a line from a hundredth of lr to lr.

    >>> [round(learning_rate(TrainConfig(epochs=200), epoch / 200), 6) for epoch in (0, 149, 150, 175)]
    [0.1, 0.1, 0.01, 0.001]
    >>> cosine = TrainConfig(schedule="cosine", warmup=0.2)
    >>> [round(learning_rate(cosine, share), 6) for share in (0, 0.1, 0.2, 0.6)]
    [0.001, 0.0505, 0.1, 0.05]
    """
    if progress < settings.warmup:
        return settings.lr * (_FIRST + (1 - _FIRST) * progress / settings.warmup)
    if settings.schedule == "cosine":
        return settings.lr * (1 + math.cos(math.pi * (progress - settings.warmup) / (1 - settings.warmup))) / 2
    passed = sum(progress >= milestone for milestone in settings.milestones)
    return settings.lr * settings.lr_decay**passed

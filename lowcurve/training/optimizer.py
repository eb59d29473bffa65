"""How does a step move the weights? SGD with momentum, decay where it belongs, the paper's schedule."""

import torch
from torch import nn

from lowcurve.training.config import TrainConfig

# β and γ are pulled by their own penalty; decay of their logarithms would pull them to 1.
UNDECAYED = ("log_beta", "log_gamma")


def make_optimizer(model: nn.Module, settings: TrainConfig) -> torch.optim.SGD:
    """Return SGD with momentum; weight decay on everything but β and γ."""
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    decayed = [p for name, p in trained if not name.endswith(UNDECAYED)]
    kept = [p for name, p in trained if name.endswith(UNDECAYED)]
    groups = [{"params": decayed, "weight_decay": settings.weight_decay}]
    if kept:
        groups.append({"params": kept, "weight_decay": 0.0})
    return torch.optim.SGD(groups, lr=settings.lr, momentum=settings.momentum)


def learning_rate(settings: TrainConfig, progress: float) -> float:
    """Return lr · decayⁿ where n milestones have passed; `progress` is the share of all steps that is done.

    >>> [round(learning_rate(TrainConfig(epochs=200), epoch / 200), 6) for epoch in (0, 149, 150, 175)]
    [0.1, 0.1, 0.01, 0.001]
    """
    passed = sum(progress >= milestone for milestone in settings.milestones)
    return settings.lr * settings.lr_decay**passed

"""What becomes of a batch before and in a step? Labels softened, samples mixed, pieces added up."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lowcurve.training.compiled import CompiledStep
from lowcurve.training.settings import TrainConfig
from lowcurve.training.step import TrainingStep


def soft_targets(y: Tensor, classes: int, smoothing: float) -> Tensor:
    """Return labels as probabilities (N, C): 1 − s on the label, and s/C on every class.

    >>> soft_targets(torch.tensor([1]), 4, 0.2)
    tensor([[0.0500, 0.8500, 0.0500, 0.0500]])
    """
    return F.one_hot(y, classes).float() * (1 - smoothing) + smoothing / classes


def varied(x: Tensor, y: Tensor, classes: int, settings: TrainConfig) -> tuple[Tensor, Tensor | None]:
    """Return inputs and the targets of cross-entropy, None for the labels themselves; noise is the global generator's.

    Mixup (Zhang et al. 2018): x̃ = w x + (1 − w) x', with x' another sample of the batch, targets alike, and one weight
    w ~ Beta(α, α) per batch, of which the larger of w and 1 − w is taken, so that the label stays the main one.
    """
    if not settings.mixup and not settings.label_smoothing:
        return x, None
    targets = soft_targets(y, classes, settings.label_smoothing)
    if not settings.mixup:
        return x, targets
    weight = torch.distributions.Beta(settings.mixup, settings.mixup).sample()
    weight = torch.maximum(weight, 1 - weight).to(x.device)
    order = torch.randperm(len(y)).to(x.device)
    return torch.lerp(x[order], x, weight), torch.lerp(targets[order], targets, weight)


def in_pieces(
    step: TrainingStep | CompiledStep, x: Tensor, y: Tensor, targets: Tensor | None, pieces: int
) -> dict[str, Tensor]:
    """Take the training step of each piece of a batch and leave the mean of their gradients, weighed by samples.

    Each sample counts as much as in one piece, but batch norms see a piece alone. It saves memory, not time.
    """
    pieces = max(1, min(pieces, len(y) // 2))
    if pieces == 1:
        return step(x, y, targets)
    parameters = [p for p in step.model.parameters() if p.requires_grad]
    totals: dict[str, Tensor] = {}
    gradients: list[Tensor | None] = [None] * len(parameters)
    parts = (tensor.tensor_split(pieces) for tensor in (x, y, y if targets is None else targets))
    for own_x, own_y, own_targets in zip(*parts, strict=True):
        share = len(own_y) / len(y)
        terms = step(own_x, own_y, None if targets is None else own_targets)
        totals = {name: totals.get(name, 0) + share * value for name, value in terms.items()}
        gradients = [_sum(before, p.grad, share) for before, p in zip(gradients, parameters, strict=True)]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    return totals


def _sum(before: Tensor | None, gradient: Any, share: float) -> Tensor | None:
    if gradient is None:
        return before
    weighed: Tensor = gradient.detach() * share
    return weighed if before is None else before.add_(weighed)

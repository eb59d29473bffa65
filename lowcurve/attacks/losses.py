"""What does a white-box attack climb? Per-sample functions of the logits that are positive once it has won.

z are the logits, y the label, t a target class. Attacks follow the normalized gradient, so what matters is
the gradient's direction and the order of the values: any increasing function of a loss would do as well.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn


def others(logits: Tensor, y: Tensor) -> Tensor:
    """Return the logits with the label's own set to -∞."""
    return logits.scatter(1, y[:, None], -torch.inf)


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Return logsumexp_{c≠y} z_c - z_y.

    The cross-entropy is softplus of this, so both have the same normalized gradient and the same order, but
    this one does not vanish in floating point at samples that the model is very sure of.
    """
    return others(logits, y).logsumexp(1) - logits.gather(1, y[:, None])[:, 0]


def margin(logits: Tensor, y: Tensor) -> Tensor:
    """Return max_{c≠y} z_c - z_y (Carlini and Wagner 2017), positive where the sample is misclassified."""
    return others(logits, y).amax(1) - logits.gather(1, y[:, None])[:, 0]


def targeted_dlr(logits: Tensor, y: Tensor, target: Tensor) -> Tensor:
    """Return the targeted difference-of-logits ratio of Croce and Hein (2020).

        (z_t - z_y) / (z_(1) - (z_(3) + z_(4)) / 2),    z_(1) ≥ z_(2) ≥ … the sorted logits.

    Below four classes z_t - z_y stands alone: with three, the ratio to z_(1) - z_(3) would be constant, hence
    without gradient, where t is the least likely class.
    """
    gap = (logits.gather(1, target[:, None]) - logits.gather(1, y[:, None]))[:, 0]
    if logits.shape[1] < 4:
        return gap
    top = logits.topk(4, dim=1).values
    return gap / (top[:, 0] - (top[:, 2] + top[:, 3]) / 2 + 1e-12)


def ascent(
    model: nn.Module, point: Tensor, loss: Callable[..., Tensor], *classes: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the logits z at `point`, the per-sample loss(z, *classes) and its gradient in `point`.

    The gradient is zero for a model whose logits do not depend on the input.
    """
    point = point.detach().requires_grad_()
    with torch.enable_grad():
        logits = model(point)
        value = loss(logits, *classes)
        if not value.requires_grad:
            return logits, value, torch.zeros_like(point)
        (gradient,) = torch.autograd.grad(value.sum(), point, allow_unused=True, materialize_grads=True)
    return logits.detach(), value.detach(), gradient

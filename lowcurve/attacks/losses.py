"""What does a white-box attack climb? Per-sample functions of the logits that are positive once it has won.

z are the logits, y the label, t a target class. Attacks follow the normalized gradient, so what matters is
the gradient's direction and the order of the values: any increasing function of a loss would do as well.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

TARGETS = 9  # wrong classes that a targeted attack tries, as in AutoAttack


def finite_logits(logits: Tensor) -> Tensor:
    """Say at which points the model answers at all: every logit is a number."""
    return logits.isfinite().all(1)


def misclassified(logits: Tensor, y: Tensor) -> Tensor:
    """Say which samples get another answer than y; no answer, NaN or infinite logits, is not another one."""
    return (logits.argmax(1) != y) & finite_logits(logits)


def others(logits: Tensor, y: Tensor) -> Tensor:
    """Return the logits with the label's own set to -∞."""
    return logits.scatter(1, y[:, None], -torch.inf)


def excess(logits: Tensor, y: Tensor) -> Tensor:
    """Return max_{c≠y} z_c - z_y (Carlini and Wagner 2017), the negative margin."""
    return others(logits, y).amax(1) - logits.gather(1, y[:, None])[:, 0]


@torch.no_grad()
def ranked_targets(model: nn.Module, x: Tensor, y: Tensor, most: int = TARGETS) -> Tensor:
    """Return up to `most` wrong classes per sample, (N, targets), the likeliest at x first."""
    return others(model(x), y).argsort(stable=True, dim=1, descending=True)[:, :-1][:, :most]


def targeted_gap(logits: Tensor, y: Tensor, target: Tensor) -> Tensor:
    """Return z_t - z_y."""
    return (logits.gather(1, target[:, None]) - logits.gather(1, y[:, None]))[:, 0]


def targeted_dlr(logits: Tensor, y: Tensor, target: Tensor) -> Tensor:
    """Return the targeted difference-of-logits ratio of Croce and Hein (2020).

        (z_t - z_y) / (z_(1) - (z_(3) + z_(4)) / 2),    z_(1) ≥ z_(2) ≥ … the sorted logits.

    Below four classes z_t - z_y stands alone: with three, the ratio to z_(1) - z_(3) would be constant, hence
    without gradient, where t is the least likely class.
    """
    gap = targeted_gap(logits, y, target)
    if logits.shape[1] < 4:
        return gap
    top = logits.topk(4, dim=1).values
    return gap / (top[:, 0] - (top[:, 2] + top[:, 3]) / 2 + 1e-12)


def ascent(
    model: nn.Module, point: Tensor, loss: Callable[..., Tensor], *classes: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the logits z at `point`, the per-sample loss(z, *classes) and its gradient in `point`.

    The gradient is zero for a model whose logits do not depend on the input. Where the logits are not finite,
    the loss is -∞ and the gradient 0; see `usable_gradient` for gradients that are not.
    """
    point = point.detach().requires_grad_()
    with torch.enable_grad():
        logits = model(point)
        value = loss(logits, *classes)
        gradient = torch.zeros_like(point)
        if value.requires_grad:
            (gradient,) = torch.autograd.grad(value.sum(), point, allow_unused=True, materialize_grads=True)
    logits = logits.detach()
    answers = finite_logits(logits)
    gradient = torch.where(answers.view(-1, *[1] * (point.dim() - 1)), usable_gradient(gradient), 0)
    return logits, torch.where(answers, value.detach(), -torch.inf), gradient


def usable_gradient(gradient: Tensor) -> Tensor:
    """Return finite gradients: NaN becomes 0, and where some slopes of a sample are infinite, only their signs count.

    >>> usable_gradient(torch.tensor([[torch.nan, 2.0], [-torch.inf, 2.0]]))
    tensor([[ 0.,  2.],
            [-1.,  0.]])
    """
    infinite = gradient.isinf()
    steepest = infinite.flatten(1).any(1).view(-1, *[1] * (gradient.dim() - 1))
    return torch.where(steepest, gradient.sign() * infinite, gradient).nan_to_num(0.0)

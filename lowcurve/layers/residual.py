"""Modules with known constants that hold a network together: residual averaging and input normalization."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lowcurve import checks
from lowcurve.errors import UserError
from lowcurve.layers.traits import smooth


class AveragedResidual(nn.Module):
    """The mean of two branches, (body(x) + shortcut(x)) / 2: at most 1-Lipschitz where both branches are.

    >>> block = AveragedResidual(nn.Identity())
    >>> block(torch.ones(2)).tolist()
    [1.0, 1.0]
    """

    def __init__(self, body: nn.Module, shortcut: nn.Module | None = None) -> None:
        super().__init__()
        checks.modules(body=body, shortcut=nn.Identity() if shortcut is None else shortcut)
        self.body = body
        self.shortcut = nn.Identity() if shortcut is None else shortcut

    def forward(self, x: Tensor) -> Tensor:
        """Average the two branches."""
        return (self.body(x) + self.shortcut(x)) / 2


class Normalize(nn.Module):
    """Map pixels to (x - mean) / std per channel (dimension 1): Lipschitz constant 1 / min std, no curvature."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float] | float, std: Sequence[float] | float) -> None:
        super().__init__()
        means, stds = checks.one_or_more(mean), checks.one_or_more(std)
        checks.numbers(mean=means)
        checks.numbers(above=0, std=stds)
        if len(means) != len(stds) and 1 not in (len(means), len(stds)):
            raise UserError(f"expected as many means as standard deviations, got {len(means)} and {len(stds)}")
        self.register_buffer("mean", torch.as_tensor(means, dtype=torch.float32))
        self.register_buffer("std", torch.as_tensor(stds, dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize each channel."""
        shape = (-1, *(1,) * (x.dim() - 2))
        return (x - self.mean.view(shape)) / self.std.view(shape)


@smooth.register(AveragedResidual)
@smooth.register(Normalize)
def _smooth(module: nn.Module) -> bool:
    return True

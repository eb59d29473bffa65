"""What is the average of a training's weights? A copy that follows them slowly, judged and kept in their place.

The average of unit-norm weights need not have unit norm, and singular vectors have no sign, so no average: the copy
takes them as they are and derives its own norms in eval mode (docs/state-safety.md).
"""

import copy

import torch
from torch import Tensor, nn

from lowcurve.compat import foreach
from lowcurve.layers.spectral import SpectralNorm

_STATISTICS = ("running_mean", "running_var")


class WeightAverage:
    r"""An exponential moving average, :math:`\bar\theta \leftarrow d \bar\theta + (1 - d) \theta` after each step.

    d = min(decay, (1 + n) / (10 + n)) after n steps, so that a short training forgets where it began. Running
    statistics are averaged like weights; all other buffers are copied, counters and singular vectors among them.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """Follow the weights that step number `step`, counted from 0, has made."""
        share = 1 - min(self.decay, (1 + step) / (10 + step))
        averaged, copied = _state(self.model)
        their_averaged, their_copied = _state(model)
        foreach("lerp_", averaged, their_averaged, share)
        if copied:
            foreach("copy_", copied, their_copied)


def _state(model: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """Return what is averaged and what is copied; what a spectral norm derives is neither."""
    averaged: list[Tensor] = [parameter.detach() for parameter in model.parameters()]
    copied: list[Tensor] = []
    for module in model.modules():
        if isinstance(module, SpectralNorm):
            copied += [module.left, module.right]
            continue
        for name, buffer in module.named_buffers(recurse=False):
            (averaged if name in _STATISTICS else copied).append(buffer)
    return averaged, copied

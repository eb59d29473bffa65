"""Adversarial training: ℓ₂ projected gradient ascent on the loss, made as cheap as an inner loop must be."""

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from lowcurve.layers.normalized import normalized_layers, standing_still
from lowcurve.objectives.replay import Replay
from lowcurve.objectives.term import Term
from lowcurve.observe import observing


def adversarial_examples(
    model: nn.Module, x: Tensor, y: Tensor, *, eps: float, steps: int, mode: str = "eval"
) -> Tensor:
    r"""Return :math:`x' = \arg\max \ell(x')` over :math:`\|x' - x\|_2 \le \epsilon`, x' in [0, 1], by PGD.

    Each step moves a sample by :math:`2.5\,\epsilon/\text{steps}` along its normalized gradient and
    projects it back; the start is uniform in the ball. `mode` "eval" attacks the function that will be
    deployed: samples do not meet in batch statistics, so that the attack is per sample and the same at
    every batch size. "train" attacks the function whose loss is minimized next, batch statistics included.
    In neither does a running statistic or a singular vector move. Parameters need no gradient meanwhile: a
    step costs a forward and half a backward.
    """
    with observing(model):
        if mode == "eval":
            return ascend(lambda z: F.cross_entropy(model(z), y, reduction="sum"), x, eps, steps)
        with standing_still(normalized_layers(model.train())):
            replay = Replay(model)
            return ascend(lambda z: F.cross_entropy(replay(z), y, reduction="sum"), x, eps, steps)


def ascend(loss: Callable[[Tensor], Tensor], x: Tensor, eps: float, steps: int) -> Tensor:
    """Maximize `loss` over the ℓ₂ ball of radius `eps` around each sample of `x`, within [0, 1]."""
    length = 2.5 * eps / steps
    delta = (x + uniform_in_ball(x, eps)).clamp(0, 1) - x
    for _ in range(steps):
        moved = (x + delta).detach().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(moved), moved)
        delta = delta + gradient * (length / sample_norms(gradient).clamp_min(1e-12))
        delta = delta * (eps / sample_norms(delta).clamp_min(eps))
        delta = (x + delta).clamp(0, 1) - x
    return (x + delta).detach()


def uniform_in_ball(x: Tensor, eps: float) -> Tensor:
    """Draw a point of the ℓ₂ ball of radius `eps` per sample of `x`, uniformly, from the global generator."""
    direction = torch.randn_like(x, memory_format=torch.contiguous_format)  # the same point in any order of memory
    dimension = x[0].numel()
    radius = eps * torch.rand(len(x), device=x.device) ** (1 / dimension)
    return direction / sample_norms(direction).clamp_min(1e-12) * radius.reshape(-1, *[1] * (x.ndim - 1))


def sample_norms(x: Tensor) -> Tensor:
    """Return the Euclidean norm of each sample, shaped to multiply `x`."""
    return x.flatten(1).norm(dim=1).reshape(-1, *[1] * (x.ndim - 1))


class AdversarialInputs(Term):
    """Takes everything else at adversarial inputs."""

    adversarial_eps: float = Field(default=0.1, gt=0, description="ℓ₂ radius of adversarial training")
    adversarial_steps: int = Field(default=3, ge=1, description="PGD steps of adversarial training")
    adversarial_mode: Literal["eval", "train"] = Field(default="eval", description="mode that PGD attacks")

    def change_inputs(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """PGD in the ℓ₂ ball."""
        eps, steps, mode = self.adversarial_eps, self.adversarial_steps, self.adversarial_mode
        return adversarial_examples(model, x, y, eps=eps, steps=steps, mode=mode)

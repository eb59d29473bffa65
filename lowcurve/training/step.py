"""What is one training step? Forward and backward of all loss terms of a method; afterwards `.grad` is set.

In units of a plain step (three convolutions per layer): cross-entropy 1, GradReg 2, CURE 4, adversarial
training 1 + 2/3 per attack step. Nothing here waits for the device.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.parametrize import cached

from lowcurve.layers.batchnorm import SharedScales
from lowcurve.layers.second_order import fast_double_backward
from lowcurve.layers.spectral import NormalizedLayer, advance, held, normalize, normalized_layers, original
from lowcurve.methods import Coefficients, Method, find_method
from lowcurve.objectives.adversarial import adversarial_examples
from lowcurve.objectives.certified import boundary_distances
from lowcurve.objectives.cure import cure_direction, cure_penalty
from lowcurve.objectives.curvature import curvature_penalty
from lowcurve.objectives.gradient import input_gradient, largest_norm, mean_square
from lowcurve.objectives.replay import Replay

# Terms of the parameters alone: name -> function of the bare model and the coefficients.
PARAMETER_TERMS: dict[str, Callable[[nn.Module, Coefficients], Tensor]] = {
    "curvature": lambda model, numbers: curvature_penalty(model, numbers.lambda_beta, numbers.lambda_gamma),
}


def training_step(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    method: Method | str,
    coefficients: Coefficients | None = None,
    dtype: torch.dtype = torch.float32,
) -> dict[str, Tensor]:
    """Set every parameter's gradient of the method's whole loss; return its terms and the batch's accuracy.

    The terms, detached and already weighted, add up to "loss". `dtype` bfloat16 runs the forward under autocast.
    With adversarial training every other term is taken at the adversarial inputs.
    """
    method = find_method(method) if isinstance(method, str) else method
    numbers = coefficients or Coefficients(**method.coefficients)
    bare = model.module if isinstance(model, DistributedDataParallel) else model
    model.zero_grad(set_to_none=True)
    normalized = list(normalized_layers(bare))
    advance(normalized)
    with held(normalized), SharedScales(bare) as scales:
        if "adversarial" in method.terms:
            with _autocast(x, dtype), fast_double_backward(twice=False):
                eps, steps, mode = numbers.adversarial_eps, numbers.adversarial_steps, numbers.adversarial_mode
                x = adversarial_examples(bare, x, y, eps=eps, steps=steps, mode=mode)
        step = _Step(model, normalized, scales, x.detach(), y, method.terms, numbers, dtype)
        penalties = {name: term(bare, numbers) for name, term in PARAMETER_TERMS.items() if name in method.terms}
        finite = "gradient" in method.terms and numbers.gradient == "finite"
        with cached():
            terms, logits = step.finite_differences(penalties) if finite else step.double_backprop(penalties)
    terms = {name: value.detach() for name, value in terms.items()}
    terms["loss"] = torch.stack(list(terms.values())).sum()
    terms["accuracy"] = (logits.detach().argmax(1) == y).float().mean()
    return terms


def term_names(method: Method) -> list[str]:
    """Return the keys of what `training_step` returns."""
    inside = ("adversarial", "certified")  # these change what the cross-entropy sees
    return ["cross_entropy", *(name for name in method.terms if name not in inside), "loss", "accuracy"]


@dataclass(frozen=True)
class _Step:
    """One batch and the terms that depend on it; both ways to differentiate return (terms, logits)."""

    model: nn.Module
    normalized: list[NormalizedLayer]
    scales: SharedScales
    x: Tensor
    y: Tensor
    terms: tuple[str, ...]
    numbers: Coefficients
    dtype: torch.dtype

    @property
    def differentiates(self) -> bool:
        """Whether gradients in the input are differentiated again."""
        exactly = self.numbers.gradient == "double"
        return bool({"cure", "certified"} & set(self.terms)) or ("gradient" in self.terms and exactly)

    def derive(self) -> list[Tensor]:
        """Compute, once for all passes, what layers derive from their parameters alone; `cached` keeps it."""
        return [*normalize(self.normalized), *self.scales.renew()]

    def losses(self, net: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
        """Return per-sample losses and logits; what follows autocast has the precision of x again."""
        with _autocast(x, self.dtype), fast_double_backward(twice=self.differentiates):
            logits = net(x)
        logits = logits.to(x.dtype)
        scores = logits
        if "certified" in self.terms:
            scores = self.numbers.sharpness * boundary_distances(logits, x, self.y)
        return F.cross_entropy(scores, self.y, reduction="none"), logits

    def double_backprop(self, penalties: dict[str, Tensor]) -> tuple[dict[str, Tensor], Tensor]:
        """One graph for everything: input gradients are differentiable, the total is backpropagated once."""
        replay = Replay(self.model) if "cure" in self.terms else None
        x = self.x.requires_grad_(self.differentiates)
        self.derive()
        losses, logits = self.losses(self.model, x)
        terms = {"cross_entropy": losses.mean(), **penalties}
        if "gradient" in self.terms or replay is not None:
            gradient = input_gradient(losses, x)
        if "gradient" in self.terms:
            terms["gradient"] = self.numbers.lambda_grad * mean_square(gradient)
        if replay is not None:
            there = (x + cure_direction(gradient, self.numbers.cure_step)).detach().requires_grad_()
            gradient_there = input_gradient(self.losses(replay, there)[0], there)
            terms["cure"] = self.numbers.lambda_cure * cure_penalty(gradient_there, gradient)
        total = torch.stack(list(terms.values())).sum()
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        total.backward(inputs=parameters if self.differentiates else None)  # x needs no gradient any more
        return terms, logits

    def finite_differences(self, penalties: dict[str, Tensor]) -> tuple[dict[str, Tensor], Tensor]:
        r"""Two plain passes instead of a graph of the gradient.

        With L the mean loss, :math:`g_i` its input gradients times N and :math:`s = h / \max_i \|g_i\|`,

        .. math:: \nabla_\theta \tfrac1N \sum_i \|g_i\|^2
                  \approx \tfrac2s (\nabla_\theta L(x + s g) - \nabla_\theta L(x)).

        One scalar s moves the whole batch (of all processes), no sample by more than h: with batch statistics
        each loss depends on every input, and steps scaled sample by sample would estimate another derivative.
        Both passes stop at what is derived from parameters; its gradients go on to the parameters together, once.
        """
        parallel = self.model if isinstance(self.model, DistributedDataParallel) else None
        replay = Replay(self.model)
        x = self.x.requires_grad_()
        derived = self.derive()
        behind = {*self.scales.parameters(), *(original(module) for _, module, _ in self.normalized)}
        direct = [p for p in self.model.parameters() if p not in behind]
        leaves = [tensor for tensor in (*derived, *direct) if tensor.requires_grad]
        with parallel.no_sync() if parallel else nullcontext():
            losses, logits = self.losses(self.model, x)
        gradient, *found = torch.autograd.grad(losses.mean(), [x, *leaves], allow_unused=True)
        leaves = [leaf for leaf, g in zip(leaves, found, strict=True) if g is not None]
        here = [g for g in found if g is not None]
        gradient = gradient * len(x)
        largest = largest_norm(gradient)
        if parallel:
            dist.all_reduce(largest, dist.ReduceOp.MAX)
        step = self.numbers.difference_step / largest
        moved, _ = self.losses(replay, x.detach() + step * gradient)
        whole = torch._foreach_sub(torch.autograd.grad(moved.mean(), leaves), here)
        torch._foreach_mul_(whole, 2 * self.numbers.lambda_grad / step)
        torch._foreach_add_(whole, here)  # ∇L(x) + 2λ/s (∇L(x + s g) − ∇L(x))
        torch.autograd.backward(
            [*leaves, *penalties.values()], [*whole, *(torch.ones_like(p) for p in penalties.values())]
        )
        squared = self.numbers.lambda_grad * mean_square(gradient)
        return {"cross_entropy": losses.mean(), **penalties, "gradient": squared}, logits


def _autocast(x: Tensor, dtype: torch.dtype) -> torch.autocast:
    return torch.autocast(x.device.type, dtype=dtype, enabled=dtype != torch.float32)

"""GradReg: the mean norm of the loss's gradient in the input, ℓ₂ squared or ℓ₁, exactly or by differences."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
import torch.distributed as dist
from pydantic import Field
from torch import Tensor

from lowcurve import checks
from lowcurve.compat import foreach
from lowcurve.errors import UserError
from lowcurve.kernels.engine import graph_nodes
from lowcurve.objectives.replay import Replay
from lowcurve.objectives.term import Term

if TYPE_CHECKING:
    from lowcurve.objectives.passes import Batch, Passes


def input_gradient(losses: Tensor, x: Tensor, create_graph: bool = True) -> Tensor:
    r"""Return :math:`g` with rows :math:`g_i = \nabla_{x_i} \sum_j \ell_j`, of the shape of `x`.

    `losses` has one entry :math:`\ell_j` per sample. Where samples do not meet,
    :math:`g_i = \nabla_{x_i} \ell_i`; batch norm in train mode lets :math:`\ell_j` depend on :math:`x_i`, and
    :math:`g_i` then contains that too.
    """
    if losses.shape != x.shape[:1] or not x.requires_grad:
        raise UserError(
            "a gradient penalty needs one loss per sample and an x that required gradients in the forward, "
            f"got losses {tuple(losses.shape)}, x {tuple(x.shape)} with requires_grad={x.requires_grad}; "
            "call x.requires_grad_() first and use reduction='none'"
        )
    try:
        (gradient,) = torch.autograd.grad(losses.sum(), x, create_graph=create_graph)
    except RuntimeError as error:
        raise UserError(f"cannot differentiate the losses in x: {error}; pass the x of their forward") from error
    return gradient


def mean_square(rows: Tensor) -> Tensor:
    """Return the mean over samples of ‖row‖₂².

    >>> float(mean_square(torch.tensor([[3.0, 4.0], [0.0, 1.0]])))
    13.0
    """
    return rows.square().sum() / len(rows)


def mean_sum(rows: Tensor) -> Tensor:
    """Return the mean over samples of ‖row‖₁.

    >>> float(mean_sum(torch.tensor([[3.0, -4.0], [0.0, 1.0]])))
    4.0
    """
    return rows.abs().sum() / len(rows)


# Which norm of the gradients -> their mean, and the derivative of one summand in the gradient.
_MEANS: Mapping[int, Callable[[Tensor], Tensor]] = MappingProxyType({2: mean_square, 1: mean_sum})
_SLOPES: Mapping[int, Callable[[Tensor], Tensor]] = MappingProxyType({2: lambda rows: 2 * rows, 1: torch.sign})


def gradient_penalty(losses: Tensor, x: Tensor, create_graph: bool = True, norm: int = 2) -> Tensor:
    r"""Return :math:`P = \frac1N \sum_{i=1}^N \| \nabla_{x_i} \ell_i \|_2^2` (Drucker and Le Cun, 1992).

    `losses` are the N per-sample losses of a forward pass at `x`, so P does not depend on the batch size. The
    released code squares the gradient of the *mean* loss instead and multiplies by 1e5: at batch size 128 its
    weight 1e-3 is 1e5/128² · 1e-3 = 6.1e-3 here. `norm=1` is the mean of :math:`\| \nabla_{x_i} \ell_i \|_1`, not
    squared: ε times it is what an attack in the ℓ∞ ball of radius ε gains, to first order.

    A network with attention runs its forward inside `lowcurve.fast_double_backward()`: PyTorch's fused attention has
    no second derivative.

    >>> x = torch.tensor([[3.0, 4.0]], requires_grad=True)
    >>> float(gradient_penalty((x**2).sum(1) / 2, x).detach())
    25.0
    >>> float(gradient_penalty((x**2).sum(1) / 2, x, norm=1).detach())
    7.0
    """
    checks.tensor(losses=losses, x=x)
    checks.flag(create_graph=create_graph)
    checks.whole(1, 2, norm=norm)
    gradient = input_gradient(losses, x, create_graph)
    _refuse_once_differentiable(gradient)
    return _MEANS[norm](gradient)


def _refuse_once_differentiable(gradient: Tensor) -> None:
    """Say how a model is made twice differentiable before a backward fails; PyTorch marks what has no formula."""
    if any(type(node).__name__ == "NotImplemented" for node in graph_nodes(gradient.grad_fn)):
        raise UserError(
            "a gradient penalty is differentiated again, got an operation without a second derivative, such as fused "
            "attention or hardsigmoid; make the forward inside `with lowcurve.fast_double_backward():`, which has one "
            "for these, or use a smooth operation in its place"
        )


def largest_norm(rows: Tensor) -> Tensor:
    """Return the largest Euclidean norm of a row, never quite 0."""
    return rows.flatten(1).norm(dim=1).amax().clamp_min(torch.finfo(rows.dtype).tiny ** 0.5)


class GradientPenalty(Term):
    """Adds λ E‖∇ₓℓ‖₂² or λ E‖∇ₓℓ‖₁ to the loss, differentiated exactly or by differences."""

    lambda_grad: float = Field(default=6.1e-3, ge=0, description="weight of E‖∇ₓℓ‖²")
    gradient_norm: Literal[1, 2] = Field(default=2, description="GradReg: 2 is E‖∇ₓℓ‖₂², 1 is E‖∇ₓℓ‖₁")
    gradient: Literal["double", "finite"] = Field(default="double", description="how GradReg differentiates")
    difference_step: float = Field(default=3e-4, gt=0, description="step of finite differences, in pixels")

    input_gradients: ClassVar[bool] = True

    @property
    def second_order(self) -> bool:
        """Differences need first derivatives only."""
        return self.gradient == "double"

    @property
    def own_backward(self) -> bool:
        """Differences of gradients are no gradient of a sum."""
        return self.gradient == "finite"

    def loss(self, batch: "Batch") -> Tensor:
        """λ E‖∇ₓℓ‖₂², or λ E‖∇ₓℓ‖₁."""
        return self.lambda_grad * _MEANS[self.gradient_norm](batch.input_gradient)

    def refusal(self, terms: Mapping[str, Term], sharpness: float) -> str | None:
        """Differences need a smooth network, and cross-entropy and penalties alone beside them."""
        if self.gradient == "double":
            return None
        if any(term is self for term in terms.values()) and not sharpness <= 10:
            return (
                "method.gradient='finite' needs a smooth activation (β ≤ 10), or its error is large; "
                "use 'double' or a method with lcnn, csoftplus-only or softplus-wd"
            )
        others = [name for name, term in terms.items() if term is not self and term.overrides("loss", "change_scores")]
        return f"method.gradient='finite' does not go with {', '.join(others)}; use 'double'" if others else None

    def backward(
        self, passes: "Passes", x: Tensor, penalties: Mapping[str, Tensor], name: str
    ) -> tuple[dict[str, Tensor], Tensor]:
        r"""Two plain passes instead of a graph of the gradient.

        With L the mean loss, :math:`g_i` its input gradients times N, :math:`v_i` the slope of the norm there
        (:math:`2 g_i` for ℓ₂², :math:`\mathrm{sign}(g_i)` for ℓ₁) and :math:`s = h / \max_i \|v_i\|_2`,

        .. math:: \nabla_\theta \tfrac1N \sum_i \|g_i\|
                  \approx \tfrac1s (\nabla_\theta L(x + s v) - \nabla_\theta L(x)).

        One scalar s moves the whole batch (of all processes), no sample by more than h: with batch statistics
        each loss depends on every input, and steps scaled sample by sample would estimate another derivative.
        Both passes stop at what is derived from parameters; its gradients go on to the parameters together, once.
        """
        replay = Replay(passes.model)
        x.requires_grad_()
        ends = [(p, p) for p in passes.model.parameters()] + passes.derive_apart()  # (to go on from, where passes end)
        ends = [(derived, copy) for derived, copy in ends if copy.requires_grad]
        with passes.parallel.no_sync() if passes.parallel else nullcontext():
            losses, logits = passes.losses(passes.model, x)
        gradient, *found = torch.autograd.grad(losses.mean(), [x, *(copy for _, copy in ends)], allow_unused=True)
        ends = [end for end, g in zip(ends, found, strict=True) if g is not None]
        here = [g for g in found if g is not None]
        gradient = gradient * len(x)
        slope = _SLOPES[self.gradient_norm](gradient)
        step = self._step(slope, parallel=passes.parallel is not None)
        moved, _ = passes.losses(replay, x.detach() + step * slope)
        whole = foreach("sub", torch.autograd.grad(moved.mean(), [copy for _, copy in ends]), here)
        foreach("mul_", whole, self.lambda_grad / step)
        foreach("add_", whole, here)  # ∇L(x) + λ/s (∇L(x + s v) − ∇L(x))
        torch.autograd.backward(
            [*(derived for derived, _ in ends), *penalties.values()],
            [*whole, *(torch.ones_like(p) for p in penalties.values())],
        )
        penalty = self.lambda_grad * _MEANS[self.gradient_norm](gradient)
        return {"cross_entropy": losses.mean(), **penalties, name: penalty}, logits

    def _step(self, slope: Tensor, parallel: bool) -> Tensor:
        """Return s = h / max ‖vᵢ‖ over the batches of all processes."""
        largest = largest_norm(slope)
        if parallel:
            dist.all_reduce(largest, dist.ReduceOp.MAX)
        return self.difference_step / largest

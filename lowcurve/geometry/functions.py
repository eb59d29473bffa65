"""Which scalar function of a model is measured: loss, margin, one logit, or a function of the caller's."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lowcurve import checks
from lowcurve.errors import UserError, unknown_name
from lowcurve.kernels.replace import fast_double_backward
from lowcurve.objectives.cross_entropy import cross_entropy_per_sample, log_odds_against
from lowcurve.outputs import ask, logits_of, refuse_batch_statistics

# A scalar function of a batch of outputs: (outputs, labels (N,)) -> values (N,). Outputs are what the model returns.
ScalarFunction = Callable[[Any, Tensor], Tensor]
Of = str | int | ScalarFunction


def margin(logits: Tensor, y: Tensor) -> Tensor:
    """Return z_y − max_{c≠y} z_c, positive where the sample is classified as y."""
    label = y.unsqueeze(1)
    # The runner-up is held fixed, so that the margin is as smooth as the logits.
    runner_up = logits.detach().scatter(1, label, -torch.inf).argmax(dim=1, keepdim=True)
    return (logits.gather(1, label) - logits.gather(1, runner_up)).squeeze(1)


FUNCTIONS: dict[str, ScalarFunction] = {"loss": cross_entropy_per_sample, "margin": margin}


def scalar_function(of: Of) -> ScalarFunction:
    """Return the function that `of` names: "loss", "margin", the index of a logit, or a callable as it is."""
    if callable(of):
        return of
    if isinstance(of, int) and not isinstance(of, bool):
        return lambda outputs, y: logits_of(outputs)[:, of]
    if isinstance(of, str) and of in FUNCTIONS:
        return lambda outputs, y: FUNCTIONS[of](logits_of(outputs), y)
    raise unknown_name("function to measure", checks.shown(of), [*FUNCTIONS, "an int (a logit)", "a callable"])


def local_model(of: Of) -> Callable[[Any, Tensor], tuple[Tensor, Tensor]]:
    r"""Return (outputs, y) -> (q, log s) such that s·q has the gradient and Hessian of f at the given point.

    Both have shape (N,); log s is in float64.

    For the loss ℓ = softplus(m), with p = p_y the label's probability, ∇ℓ = (1 − p) ∇m and
    ∇²ℓ = (1 − p) (p ∇m ∇mᵀ + ∇²m). So q = m + p (m − m₀)²/2 with p and m₀ = m held constant, and s = 1 − p:
    the derivatives of q keep their size where the loss and its own derivatives underflow. Else q = f, s = 1.
    """
    function = scalar_function(of)
    if of != "loss":
        return lambda outputs, y: (values := function(outputs, y), torch.zeros_like(values, dtype=torch.float64))

    def local_loss(outputs: Any, y: Tensor) -> tuple[Tensor, Tensor]:
        logits = logits_of(outputs)
        m = log_odds_against(logits, y)
        fixed = m.detach()
        log_scale = F.logsigmoid(log_odds_against(logits.detach().double(), y))
        return m + torch.sigmoid(-fixed) * (m - fixed).square() / 2, log_scale

    return local_loss


def twice_differentiable(model: nn.Module, x: Tensor) -> Any:
    """Return model(x) on a graph that can be differentiated twice, cheaply; `x` itself is never written."""
    with fast_double_backward():
        return ask(model, x.clone())


def checked_inputs(x: Tensor) -> Tensor:
    """Return `x` if it can be differentiated with respect to, else say what to do."""
    checks.samples(x)
    if x.ndim == 4 and x.numel() and x.amin() >= 0 and x.amax() > 2 and bool((x == x.round()).all()):
        raise UserError(
            f"expected images in [0, 1], got whole numbers up to {x.max():g}; divide them by the largest level: x / 255"
        )
    return x.detach()


def checked_labels(model: nn.Module, x: Tensor, y: Tensor | None, of: Of) -> Tensor:
    """Return labels on x's device, the model's own predictions where `y` is None; refuse what does not fit.

    The model runs once on one sample (or on all, where it has to predict) to learn the number of classes.
    """
    refuse_batch_statistics(model)
    scalar_function(of)
    if y is not None:
        checks.labels(y, x)
    with torch.no_grad():
        outputs = checks.run(model, x if y is None else x[:1], partial(twice_differentiable, model))
    if callable(of):
        return torch.zeros(len(x), dtype=torch.long, device=x.device) if y is None else y.to(x.device, copy=True)
    logits = logits_of(outputs)
    if logits.ndim != 2:
        raise UserError(
            f"expected logits of shape (N, C), got {tuple(logits.shape)}; pass of=a function of the outputs that "
            "returns (N,)"
        )
    checks.logits(logits, len(x) if y is None else 1)
    classes = logits.shape[1]
    if isinstance(of, int) and not 0 <= of < classes:
        raise UserError(f"expected a logit in 0..{classes - 1}, got of={of}")
    if y is None:
        return logits.argmax(dim=1)
    if len(y) and not (int(y.min()) >= 0 and int(y.max()) < classes):
        raise UserError(
            f"expected labels in 0..{classes - 1}, got {int(y.min())}..{int(y.max())}; count classes from 0"
        )
    return y.to(x.device, torch.long, copy=True)

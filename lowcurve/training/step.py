"""What is one training step? Forward and backward of all loss terms of a method; afterwards `.grad` is set.

In units of a plain step (three convolutions per layer): cross-entropy 1, GradReg 2, CURE 4, adversarial
training 1 + 2/3 per attack step. Nothing here waits for the device.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lowcurve.errors import UserError
from lowcurve.methods import Method, terms_of
from lowcurve.objectives.passes import Passes


class TrainingStep:
    """The step of a method, resolved once: call it with each batch.

    `coefficients` are those that differ from the method's own. `dtype` bfloat16 runs forwards under autocast.
    """

    def __init__(
        self,
        model: nn.Module,
        method: Method | str,
        coefficients: Mapping[str, Any] | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.model, self.dtype = model, dtype
        self.terms = terms_of(method, coefficients)

    def __call__(self, x: Tensor, y: Tensor, targets: Tensor | None = None) -> dict[str, Tensor]:
        """Set every parameter's gradient of the whole loss; return its summands and the batch's accuracy.

        The summands, detached and already weighted, add up to "loss". Terms that change the inputs come first: every
        other one is taken at the changed inputs. `targets` are probabilities (N, C) for cross-entropy in place of `y`.
        """
        self.model.zero_grad(set_to_none=True)
        with Passes(self.model, self.terms.values(), y, self.dtype, targets) as passes:
            x = passes.changed_inputs(x)
            penalties = {n: _number(n, t.penalty(passes.bare)) for n, t in self.terms.items() if t.overrides("penalty")}
            own = next((name for name, term in self.terms.items() if term.own_backward), None)
            if own is None:
                values, logits = self._backward(passes, x, penalties)
            else:
                values, logits = self.terms[own].backward(passes, x, penalties, own)
        values = {name: value.detach() for name, value in values.items()}
        values["loss"] = torch.stack(list(values.values())).sum()
        values["accuracy"] = (logits.detach().argmax(1) == y).float().mean()
        return values

    def _backward(self, passes: Passes, x: Tensor, penalties: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Tensor]:
        """One graph for everything: input gradients are differentiable, the total is backpropagated once."""
        batch = passes.batch(x)
        values = {"cross_entropy": batch.losses.mean(), **penalties}
        for name, term in self.terms.items():
            if term.overrides("loss"):
                value = _number(name, term.loss(batch))
                values[name] = value + penalties[name] if name in penalties else value
        total = torch.stack(list(values.values())).sum()
        parameters = [p for p in self.model.parameters() if p.requires_grad] if passes.second_order else None
        total.backward(inputs=parameters)  # x needs no gradient any more
        return values, batch.logits


def training_step(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    method: Method | str,
    coefficients: Mapping[str, Any] | None = None,
    dtype: torch.dtype = torch.float32,
) -> dict[str, Tensor]:
    """Take one `TrainingStep`: set gradients, return the summands of the loss, the loss and the accuracy."""
    return TrainingStep(model, method, coefficients, dtype)(x, y)


def _number(name: str, value: Tensor) -> Tensor:
    if not isinstance(value, Tensor) or value.ndim:
        got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise UserError(f"term {name!r} should return one number, a tensor of shape (), got {got}; take a mean or sum")
    return value

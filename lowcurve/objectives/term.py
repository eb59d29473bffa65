"""What does a training method do besides cross-entropy? It has terms, each a class whose fields are its coefficients.

A term overrides what it changes: the inputs, the scores that cross-entropy sees, or the loss, to which it adds a
number of the parameters alone (`penalty`) or of a batch (`loss`). One more, from inside or outside the package:

    class SmallLogits(Term):
        lambda_logits: float = Field(default=1e-3, ge=0, description="weight of E‖z‖²")

        def loss(self, batch: Batch) -> Tensor:
            return self.lambda_logits * mean_square(batch.logits)

    TERMS["small-logits"] = SmallLogits
    METHODS["small-logits"] = Method("Small logits", terms=("small-logits",))

`lambda_logits` is then a key of a recipe's `[method]`, and `small-logits` a column of the log.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

if TYPE_CHECKING:
    from lowcurve.objectives.passes import Batch, Passes


class Term(BaseModel):
    """A part of a training objective with its coefficients; what it does not override stays as it is."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    input_gradients: ClassVar[bool] = False  # whether the loss contains gradients in the input
    elsewhere: ClassVar[bool] = False  # whether `loss` evaluates the same function at other inputs

    @property
    def second_order(self) -> bool:
        """Whether gradients in the input are differentiated again."""
        return self.input_gradients

    @property
    def own_backward(self) -> bool:
        """Whether `backward` of this term sets all gradients, instead of one backward through the sum of all terms."""
        return False

    def change_inputs(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """Return the inputs at which everything else is taken, without a graph."""
        return x

    def change_scores(self, scores: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return what cross-entropy gets instead of the logits, of shape (N, C)."""
        return scores

    def penalty(self, model: nn.Module) -> Tensor:
        """Return what is added to the loss, weighted: a number that depends on the parameters alone."""
        raise NotImplementedError

    def loss(self, batch: "Batch") -> Tensor:
        """Return what is added to the loss, weighted: a number that depends on the batch."""
        raise NotImplementedError

    def backward(
        self, passes: "Passes", x: Tensor, penalties: Mapping[str, Tensor], name: str
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Set every parameter's gradient; return the summands of the loss, this one by its `name`, and the logits."""
        raise NotImplementedError

    def refusal(self, terms: Mapping[str, "Term"], sharpness: float) -> str | None:
        """Say why this term's coefficients cannot work with the `terms` of a method, in a network of that sharpness.

        The term itself is one of them or not: a recipe has coefficients of every term. `sharpness` is β where the
        activation is a softplus, else four times its curvature constant.
        """
        return None

    @classmethod
    def overrides(cls, *hooks: str) -> bool:
        """Whether the term's class has its own version of one of these methods."""
        return any(getattr(cls, hook) is not getattr(Term, hook) for hook in hooks)

    @classmethod
    def adds(cls) -> bool:
        """Whether the term is a summand of the loss, and so a column of the log."""
        return cls.overrides("penalty", "loss")

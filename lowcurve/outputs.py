"""Where are the logits in what a model returns? In the tensor itself, or in the `logits` of an object or a mapping."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from lowcurve.errors import UserError


def logits_of(outputs: Any) -> Tensor:
    """Return the logits: `outputs` itself, `outputs["logits"]` or `outputs.logits` (as transformers returns them).

    >>> import torch
    >>> logits_of({"loss": None, "logits": torch.zeros(1, 2)})
    tensor([[0., 0.]])
    """
    if isinstance(outputs, Tensor):
        return outputs
    found = outputs.get("logits") if isinstance(outputs, Mapping) else getattr(outputs, "logits", None)
    if isinstance(found, Tensor):
        return found
    raise UserError(
        f"expected a model that returns logits, (N, classes), or something with logits, got {type(outputs).__name__}; "
        "wrap the model in one whose forward picks the logits"
    )


class Classifier(nn.Module):
    """A model seen as what attacks and searches need: inputs to logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits at `x`, which a model that works in place must not overwrite."""
        return logits_of(self.model(x.clone()))


def classifier(model: nn.Module) -> nn.Module:
    """Return `model` as a `Classifier`; one that is a `Classifier` already stays itself."""
    return model if isinstance(model, Classifier) else Classifier(model)

"""How is a model asked, and where are its logits? In the tensor it returns, or in `logits` of an object or mapping."""

import inspect
import operator
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, cast

import torch
from torch import Tensor, fx, nn

from lowcurve.compat import BATCH_NORMS
from lowcurve.errors import UserError
from lowcurve.observe import observing

PIXEL_VALUES = "pixel_values"


def logits_of(outputs: Any) -> Tensor:
    """Return the logits: `outputs` itself, `outputs["logits"]` or `outputs.logits` (as transformers returns them).

    >>> logits_of({"loss": None, "logits": torch.zeros(1, 2)})
    tensor([[0., 0.]])
    """
    if isinstance(outputs, Tensor | fx.Proxy):
        return cast(Tensor, outputs)
    found = outputs.get("logits") if isinstance(outputs, Mapping) else getattr(outputs, "logits", None)
    if isinstance(found, Tensor | fx.Proxy):
        return cast(Tensor, found)
    raise UserError(
        f"expected a model that returns logits, (N, classes), or something with logits, got {type(outputs).__name__}; "
        "wrap the model in one whose forward picks the logits"
    )


def keyword(model: nn.Module) -> str | None:
    """Return the name under which a model takes its pixels where they are not its first argument, else None.

    That is `pixel_values`, transformers' name for them.

    >>> class Picky(nn.Module):
    ...     def forward(self, labels=None, *, pixel_values): ...
    >>> keyword(Picky()), keyword(nn.Identity())
    ('pixel_values', None)
    """
    try:
        parameters = inspect.signature(model.forward).parameters.values()
    except (TypeError, ValueError):  # a forward that Python cannot describe
        return None
    named = [parameter.name for parameter in parameters]
    ordered = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL)]
    anything = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    asked = PIXEL_VALUES in named or (anything and not ordered)
    return PIXEL_VALUES if asked and ordered[:1] != [PIXEL_VALUES] else None


def ask(model: nn.Module, x: Tensor) -> Any:
    """Return what the model says to the pixels `x`."""
    name = keyword(model)
    return model(x) if name is None else model(**{name: x})


class Classifier(nn.Module):
    """A model seen as what attacks and searches need: inputs to logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self._keyword = keyword(model)
        self._place: str | None = None  # where the logits are: "" (the output itself), "item" or "attribute"

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits at `x`, which a model that works in place must not overwrite."""
        pixels = x.clone()
        outputs = self.model(pixels) if self._keyword is None else self.model(**{self._keyword: pixels})
        if not isinstance(outputs, fx.Proxy):
            found = logits_of(outputs)
            self._place = "" if found is outputs else "item" if isinstance(outputs, Mapping) else "attribute"
            return found
        if self._place is None:  # a trace that does not look into the model
            raise UserError(f"where {type(self.model).__name__} has its logits shows when it runs: run it once before")
        if self._place == "item":
            return cast(Tensor, operator.getitem(cast(Any, outputs), "logits"))
        return cast(Tensor, outputs.logits if self._place else outputs)


def classifier(model: nn.Module) -> nn.Module:
    """Return `model` as a `Classifier`; one that is a `Classifier` already stays itself."""
    return model if isinstance(model, Classifier) else Classifier(model)


def returning_logits(model: nn.Module, example: Tensor) -> nn.Module:
    """Return `model` itself where it returns a tensor at `example` (or fails there), else as a `Classifier`."""
    try:
        with observing(model), torch.no_grad():
            found = ask(model, example.clone())
    except Exception:  # whoever uses the model next says what is wrong with it
        return model
    if isinstance(found, Tensor) and keyword(model) is None:
        return model
    asked = classifier(model)
    with observing(model), torch.no_grad(), suppress(UserError):
        asked(example)  # so that it knows where the logits are
    return asked


def refuse_batch_statistics(model: nn.Module) -> None:
    """Refuse a model whose answer for a sample depends on the other samples of its batch, in eval mode too."""
    for name, module in model.named_modules():
        if isinstance(module, BATCH_NORMS) and module.running_mean is None:
            raise UserError(
                f"{name or '(model)'} ({type(module).__name__}) has no running statistics, so that each answer depends "
                "on the whole batch and says nothing of its sample; build it with track_running_stats=True"
            )

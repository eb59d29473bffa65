"""How do the forwards of one training step hang together? They compute one function, and what they can share once."""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from lowcurve.errors import UserError
from lowcurve.kernels.replace import fast_double_backward
from lowcurve.layers.together import Together
from lowcurve.objectives.gradient import input_gradient
from lowcurve.objectives.replay import Replay
from lowcurve.objectives.term import Term


class Passes:
    """Context of one training step: singular vectors move once on entry, then stand still in every forward.

    From `derive` on, normalized weights and the scales of γ-BNs are computed once for all forwards. Forwards build
    graphs whose gradients are cheap to differentiate again, where a term needs that.
    """

    def __init__(
        self,
        model: nn.Module,
        terms: Collection[Term],
        y: Tensor,
        dtype: torch.dtype,
        targets: Tensor | None = None,
    ) -> None:
        self.model, self.terms, self.y, self.dtype = model, terms, y, dtype
        self.targets = y if targets is None else targets
        self.parallel = model if isinstance(model, DistributedDataParallel) else None
        self.bare: nn.Module = model.module if isinstance(model, DistributedDataParallel) else model
        self.second_order = any(term.second_order for term in terms)
        self._changing_scores = [term for term in terms if term.overrides("change_scores")]

    def __enter__(self) -> Self:
        self._together = Together(self.bare)
        self._together.__enter__()
        return self

    def __exit__(self, *_error: object) -> None:
        self._together.__exit__()

    def changed_inputs(self, x: Tensor) -> Tensor:
        """Return the inputs after every term that changes them, detached."""
        changing = [term for term in self.terms if term.overrides("change_inputs")]
        if changing:
            with torch.no_grad():
                self.derive()
        for term in changing:
            with self._forward(x, second_order=False):
                x = term.change_inputs(self.bare, x, self.y)
        return x.detach()

    def derive(self) -> list[Tensor]:
        """Compute and keep what layers derive from their parameters alone; return it."""
        return self._together.renew()

    def derive_apart(self) -> list[tuple[Tensor, Tensor]]:
        """Derive, but let forwards end at copies; return what was derived, each with its copy."""
        return self._together.renew_apart()

    def losses(self, net: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
        """Return per-sample losses and logits; what follows autocast has the precision of x again."""
        with self._forward(x, self.second_order):
            logits = net(x)
        logits = logits.to(x.dtype)
        scores = logits
        for term in self._changing_scores:
            scores = term.change_scores(scores, x, self.y)
        return F.cross_entropy(scores, self.targets, reduction="none"), logits

    def batch(self, x: Tensor) -> "Batch":
        """Make the step's first forward."""
        replay = Replay(self.model) if any(term.elsewhere for term in self.terms) else None
        x.requires_grad_(self.second_order)
        self.derive()
        losses, logits = self.losses(self.model, x)
        return Batch(self, x, self.y, logits, losses, replay)

    @contextmanager
    def _forward(self, x: Tensor, second_order: bool) -> Iterator[None]:
        lower = self.dtype != torch.float32
        with torch.autocast(x.device.type, dtype=self.dtype, enabled=lower), fast_double_backward(twice=second_order):
            yield


@dataclass(frozen=True)
class Batch:
    """What a term sees of a batch: inputs (N, …), labels (N,), logits (N, C) and losses (N,), with their graph."""

    passes: Passes
    x: Tensor
    y: Tensor
    logits: Tensor
    losses: Tensor
    replay: Replay | None

    @property
    def model(self) -> nn.Module:
        """The model itself, without what several processes wrap around it."""
        return self.passes.bare

    @cached_property
    def input_gradient(self) -> Tensor:
        """∇ₓ of the losses' sum, of the shape of x, differentiable; computed once for all terms."""
        if not self.x.requires_grad:
            raise UserError("a term that uses input_gradient says so: give its class input_gradients = True")
        return input_gradient(self.losses, self.x)

    def losses_at(self, x: Tensor) -> Tensor:
        """Return the losses of the same function (buffers, noise, weights) at other inputs."""
        if self.replay is None:
            raise UserError("a term that uses losses_at says so: give its class elsewhere = True")
        return self.passes.losses(self.replay, x)[0]

"""What do the layers of a model derive from their parameters, and how is it computed for all of them at once?

Normalized weights W / σ, after the singular vectors have followed the weights, and the scales of γ-BNs: layer by layer
these are dozens of small operations each. `Together` computes them in a few; `together` lets every forward of a model
do so. Who calls a single layer gets the same numbers from the layer itself.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Self
from weakref import WeakSet

import torch
from torch import Tensor, nn

from lowcurve.compat import FORWARD_HOOKS, foreach, hooks, is_compiled
from lowcurve.kernels.engine import in_backward, is_transformed, repeated_in_backward
from lowcurve.kernels.replace import fast_double_backward
from lowcurve.kernels.scales import norm_scales
from lowcurve.kernels.unit import unit_weights
from lowcurve.layers.batchnorm import LipschitzBatchNorm1d, LipschitzBatchNorm2d
from lowcurve.layers.counting import counted_together
from lowcurve.layers.normalized import NormalizedLayer, follow_weights, spectral_of, standing_still
from lowcurve.observe import is_observed

LipschitzBatchNorm = LipschitzBatchNorm1d | LipschitzBatchNorm2d


class Together:
    """Context: singular vectors follow the weights on entry, for all layers in training mode, then stand still.

    From `renew` on, layers have their normalized weights and scales, which are of the present parameters and running
    variances, until the next `renew` or the end. Batch norms count their batches at the end. A model that `compile()`
    was called on computes for itself, as its compiler joins operations.
    """

    def __init__(self, model: nn.Module) -> None:
        self.spectral: list[NormalizedLayer] = []
        self.norms: list[Any] = []
        for name, module in model.named_modules():  # one walk: there is one in every step
            if isinstance(module, LipschitzBatchNorm):
                self.norms += [module] if type(module.norm) is module._norm else []
            elif (spectral := spectral_of(module)) is not None:
                self.spectral.append((name, module, spectral))
        self._model, self._compiled = model, is_compiled(model)

    @property
    def is_around(self) -> bool:
        """Whether such a context is around this call already, for these layers."""
        return any(s.stands_still for _, _, s in self.spectral) or any(n.shared_scale is not None for n in self.norms)

    def __enter__(self) -> Self:
        follow_weights(self.spectral)
        for _, _, spectral in self.spectral:
            if not spectral.training:
                spectral.refresh(spectral.given())
        self._contexts = ExitStack()
        self._contexts.enter_context(counted_together())
        self._contexts.enter_context(standing_still(self.spectral))
        _INSIDE.add(self._model)
        return self

    def __exit__(self, *_error: object) -> None:
        _INSIDE.discard(self._model)
        for _, _, spectral in self.spectral:
            spectral.unit = None
        for norm in self.norms:
            norm.shared_scale, norm.scales_once = None, False
        self._contexts.close()

    def renew(self) -> list[Tensor]:
        """Compute normalized weights and scales, for the forwards until the next call; return them all."""
        return [] if self._compiled else [*self.units(), *self.scales()]

    def renew_apart(self) -> list[tuple[Tensor, Tensor]]:
        """Renew, but give layers copies that their graphs end at; return pairs of what was derived and its copy.

        A layer may compute for itself all the same (checkpointing, compiled models): its graph ends at parameters.
        """
        pairs: dict[Tensor, Tensor] = {t: t.detach().requires_grad_(t.requires_grad) for t in self.renew()}
        for _, _, spectral in self.spectral:
            spectral.unit = pairs.get(spectral.unit)  # type: ignore[arg-type]
        for norm in self.norms:
            norm.shared_scale = norm.shared_scale and tuple(map(pairs.get, norm.shared_scale))
        return list(pairs.items())

    def units(self, copied: bool = False) -> list[Tensor]:
        """Compute normalized weights; graphs get copies of the slopes where these may change before the backward."""
        found: list[Tensor] = []
        for layers in _alike([(s, (s.slope.dtype, s.slope.device)) for _, _, s in self.spectral]):
            slopes = [layer.slope for layer in layers]
            slopes = foreach("mul", slopes, 1) if copied else slopes
            units = unit_weights([layer.given() for layer in layers], slopes)
            for layer, unit in zip(layers, units, strict=True):
                layer.unit = unit
            found += units
        return found

    def scales(self) -> list[Tensor]:
        """Compute the scaled weights and biases of γ-BNs."""
        found: list[Tensor | None] = []
        for layers in _alike([(n, (n.log_gamma.dtype, n.log_gamma.device)) for n in self.norms]):
            norms = [layer.norm for layer in layers]
            variances = [norm.running_var for norm in norms]
            given = ([norm.weight for norm in norms], [norm.bias for norm in norms])
            gammas, eps = [layer.log_gamma for layer in layers], [norm.eps for norm in norms]
            for layer, scale in zip(layers, norm_scales(variances, *given, gammas, eps), strict=True):
                layer.shared_scale = scale
                found += scale
        return [tensor for tensor in found if tensor is not None]


def _alike(layers: Sequence[tuple[Any, Any]]) -> list[list[Any]]:
    """Return layers in groups of those with the same key, each once."""
    groups: dict[Any, dict[Any, None]] = {}
    for layer, key in layers:
        groups.setdefault(key, {})[layer] = None
    return [list(group) for group in groups.values()]


def together(model: nn.Module) -> None:
    """Let every forward of `model` derive for all its layers at once.

    Where its input needs a gradient, forwards also build graphs that are cheap to differentiate twice.
    """
    if all(_before not in hooks(model, name).values() for name in FORWARD_HOOKS):
        model.register_forward_pre_hook(_before, with_kwargs=True)
        model.register_forward_hook(_after, always_call=True)


def _before(model: nn.Module, args: Any, kwargs: Any) -> None:
    if torch.compiler.is_compiling():
        return
    inputs = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
    if not inputs or any(map(is_transformed, inputs)) or in_backward() or is_compiled(model):
        return
    _after(model)  # what an interrupted forward has left
    if model in _INSIDE:
        return
    derived = Together(model)
    if derived.is_around:
        return
    contexts = vars(model)[_CONTEXTS] = ExitStack()
    contexts.enter_context(derived)
    if not repeated_in_backward():
        derived.scales()
        for norm in derived.norms:
            norm.scales_once = True
        if not is_observed():  # else each layer keeps its own
            derived.units(copied=True)
    if torch.is_grad_enabled() and any(x.requires_grad for x in inputs) and not fast_double_backward.is_on():
        contexts.enter_context(fast_double_backward())


def _after(model: nn.Module, *_results: Any) -> None:
    if not torch.compiler.is_compiling():
        contexts: ExitStack | None = vars(model).pop(_CONTEXTS, None)
        if contexts is not None:
            contexts.close()


_CONTEXTS = "_lowcurve_contexts"
_INSIDE: WeakSet[nn.Module] = WeakSet()  # models inside a `Together`: no need to walk through their layers to know

"""Which layers of a network are kept at operator norm 1, and how are they, all together, while it trains?

`spectral_norm` gives a layer its parametrization (`layers/spectral.py`) and a hook by which the singular vectors follow
the weight before each forward in training; `layers/together.py` does that once per step for all layers.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from lowcurve import checks
from lowcurve.compat import child, foreach
from lowcurve.errors import UserError
from lowcurve.kernels.engine import in_backward
from lowcurve.layers.spectral import SpectralNorm
from lowcurve.linalg.following import follow

_SCALES = 1e-36, 1e36  # within float32, with room for a norm that is larger or smaller than the largest weight

NormalizedLayer = tuple[str, nn.Module, SpectralNorm]  # its name in the model, the layer, its parametrization


def spectral_norm(module: nn.Module, input_size: tuple[int, ...] | int | None = None, iterations: int = 1) -> nn.Module:
    """Give `module` (Linear, Conv1d, Conv2d) unit operator norm on inputs of spatial size `input_size`.

    Registers a `SpectralNorm` parametrization on `module.weight` and returns the module. `iterations` is the least
    number of power iterations per forward in training mode.

    >>> layer = spectral_norm(nn.Conv2d(3, 4, 3, padding=1), input_size=(8, 8))
    >>> _ = converge(layer)
    >>> x = layer.parametrizations.weight[0].right
    >>> round(float(nn.functional.conv2d(x, layer.weight, padding=1).norm()), 4)
    1.0
    """
    checks.whole(1, iterations=iterations)
    checks.usable(module, "module")
    if spectral_of(module) is not None:
        raise UserError(f"{type(module).__name__} is spectrally normalized already")
    _check_weight(module)
    parametrization = SpectralNorm(module, input_size, iterations)
    parametrization.train(module.training)
    parametrize.register_parametrization(module, "weight", parametrization)
    parametrization.chain = (module.parametrizations["weight"],)  # type: ignore[index,assignment]
    module.register_forward_pre_hook(_follow_weight)
    return module


def _check_weight(module: nn.Module) -> None:
    """Refuse a weight that a hook computes, and one whose norm no float32 can hold."""
    if not isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
        raise UserError(f"expected a Linear or Conv layer, got {type(module).__name__}")
    if not isinstance(getattr(module, "weight", None), nn.Parameter) and not parametrize.is_parametrized(
        module, "weight"
    ):
        raise UserError(
            f"the weight of {type(module).__name__} is computed by a hook, as legacy torch.nn.utils.weight_norm and "
            "spectral_norm do; remove it first (remove_weight_norm, remove_spectral_norm)"
        )
    largest = float(module.weight.detach().abs().amax()) if module.weight.numel() else 0.0
    if largest and not _SCALES[0] < largest < _SCALES[1]:
        raise UserError(
            f"expected weights between {_SCALES[0]:g} and {_SCALES[1]:g}, or zero, got {largest:g} as the largest: "
            "its square is out of range; scale the weight first"
        )


def spectral_of(module: nn.Module) -> SpectralNorm | None:
    """Return the layer's `SpectralNorm`, or None where it has none."""
    lists: Any = child(module, "parametrizations")  # looked up for every module of a net in every step
    if lists is None or "weight" not in lists:
        return None
    for link in lists["weight"]:  # a loop, which every compiler of PyTorch 2 can read
        if isinstance(link, SpectralNorm):
            return link
    return None


def normalized_layers(model: nn.Module) -> Iterator[NormalizedLayer]:
    """Yield (name, layer, parametrization) of each spectrally normalized layer of `model`."""
    for name, module in model.named_modules():
        spectral = spectral_of(module)
        if spectral is not None:
            yield name, module, spectral


def converge(model: nn.Module, tolerance: float = 1e-5) -> dict[str, float]:
    """Iterate every spectral norm of `model` to convergence now; return each layer's σ by name."""
    return {name: spectral.converge(spectral.given(), tolerance) for name, _, spectral in normalized_layers(model)}


def original(module: nn.Module) -> Tensor:
    """The unnormalized weight of a spectrally normalized layer."""
    weight: Tensor = module.parametrizations["weight"].original  # type: ignore[index,union-attr]
    return weight


@contextmanager
def standing_still(layers: Iterable[NormalizedLayer]) -> Iterator[None]:
    """Let no forward of these layers change a singular vector inside this context, in whatever mode."""
    before = [(spectral, spectral.stands_still) for _, _, spectral in layers]
    for spectral, _ in before:
        spectral.stands_still = True
    try:
        yield
    finally:
        for spectral, was in before:
            spectral.stands_still = was


def _follow_weight(module: nn.Module, _inputs: Any) -> None:
    spectral = spectral_of(module)
    if spectral is not None and not spectral.stands_still:
        follow_weights([("", module, spectral)])


@torch.no_grad()
def follow_weights(layers: Iterable[NormalizedLayer]) -> None:
    """Take singular vectors to those of the weights, for all layers in training mode that do not stand still.

    A layer's own forward does that too. Forwards inside a backward repeat earlier ones and do not.
    """
    own = [s for s in dict.fromkeys(s for _, _, s in layers) if s.training and not s.stands_still]  # shared: once
    if not own or in_backward():
        return
    alike: dict[Any, list[SpectralNorm]] = {}
    for spectral in own:
        alike.setdefault((spectral.right.device, spectral.right.dtype), []).append(spectral)
    for group in alike.values():
        weights = [spectral.given().detach().to(spectral.right.dtype) for spectral in group]
        left, right, slopes = ([getattr(s, name) for s in group] for name in ("left", "right", "slope"))
        follow([s.map for s in group], weights, left, right, slopes, max(s.iterations for s in group))
        foreach("zero_", [s.mark for s in group])
        if not torch.compiler.is_compiling():
            for spectral in group:
                spectral.checked = spectral.written(spectral.given())

"""Spectral normalization: how is a Linear or convolution layer kept at operator norm 1 while it trains?

The weight W is divided by σ = uᵀ W v, where u and v are the leading singular vectors of the *real* linear map at
the true input size (Ryu et al. 2019), followed through training by one warm-started power iteration per step.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from lowcurve.errors import UserError
from lowcurve.layers.linear_map import LinearMap, largest_singular

_FIRST_ITERATIONS = 15


class SpectralNorm(nn.Module):
    """The parametrization W ↦ W / σ(W), with σ = ⟨u, W v⟩ differentiable in W and u, v held constant.

    Reading the weight never iterates and eval mode changes nothing: `advance` is called by the host layer's
    forward, once, and only in training.
    """

    left: Tensor
    right: Tensor

    def __init__(self, module: nn.Module, input_size: tuple[int, ...] | int | None, iterations: int) -> None:
        super().__init__()
        self.map = LinearMap.of(module, input_size)
        self.iterations = iterations
        weight: Tensor = module.weight.detach()  # type: ignore[operator]
        right = torch.randn(1, *self.map.input_shape, generator=torch.Generator().manual_seed(0))
        self.register_buffer("right", _unit(right.to(weight)))
        self.register_buffer("left", _unit(self.map.apply(weight, self.right)))
        self._iterate(weight, _FIRST_ITERATIONS)

    def forward(self, weight: Tensor) -> Tensor:
        """Return the weight divided by its operator norm."""
        return weight / self.sigma(weight).to(weight.dtype)

    def right_inverse(self, weight: Tensor) -> Tensor:
        """Assigning to `module.weight` sets the unnormalized weight."""
        return weight

    def sigma(self, weight: Tensor) -> Tensor:
        """The operator norm ⟨u, W v⟩ as far as the iteration has come, at least the smallest positive number."""
        left, right = self.left, self.right
        if torch.is_grad_enabled() and weight.requires_grad:
            left, right = (
                left.clone(),
                right.clone(),
            )  # a later forward may advance the buffers before backward
        with torch.autocast(weight.device.type, enabled=False):
            sigma = (left * self.map.apply(weight.to(right.dtype), right)).sum()
        return sigma.clamp_min(torch.finfo(sigma.dtype).tiny)

    def advance(self, weight: Tensor) -> None:
        """Follow the weight by the usual number of power iterations."""
        self._iterate(weight, self.iterations)

    def converge(self, weight: Tensor, tolerance: float = 1e-5) -> float:
        """Iterate until the singular pair's residual is below `tolerance` σ; return σ."""
        pair = largest_singular(self.map, weight.detach().to(self.right.dtype), self.right, tolerance)
        if pair.sigma > 0:
            self.right.copy_(pair.right)
            self.left.copy_(pair.left)
        return pair.sigma

    @torch.no_grad()
    def _iterate(self, weight: Tensor, iterations: int) -> None:
        weight = weight.detach().to(self.right.dtype)
        with torch.autocast(weight.device.type, enabled=False):
            for _ in range(iterations):
                self.right.copy_(_unit(self.map.adjoint(weight, self.left)))
                self.left.copy_(_unit(self.map.apply(weight, self.right)))


def spectral_norm(module: nn.Module, input_size: tuple[int, ...] | int | None = None, iterations: int = 1) -> nn.Module:
    """Give `module` (Linear, Conv1d, Conv2d) unit operator norm on inputs of spatial size `input_size`.

    Registers a `SpectralNorm` parametrization on `module.weight` and returns the module. `iterations` is the
    number of power iterations per forward in training mode.

    >>> layer = spectral_norm(nn.Conv2d(3, 4, 3, padding=1), input_size=(8, 8))
    >>> _ = converge(layer)
    >>> x = layer.parametrizations.weight[0].right
    >>> round(float(nn.functional.conv2d(x, layer.weight, padding=1).norm()), 4)
    1.0
    """
    if iterations < 1:
        raise UserError(f"iterations must be at least 1, got {iterations}")
    if spectral_of(module) is not None:
        raise UserError(f"{type(module).__name__} is spectrally normalized already")
    parametrization = SpectralNorm(module, input_size, iterations)
    parametrization.train(module.training)
    parametrize.register_parametrization(module, "weight", parametrization)
    module.register_forward_pre_hook(_advance)
    return module


def spectral_of(module: nn.Module) -> SpectralNorm | None:
    """Return the layer's `SpectralNorm`, or None where it has none."""
    if not parametrize.is_parametrized(module, "weight"):
        return None
    chain: Any = module.parametrizations["weight"]  # type: ignore[index]
    return next((link for link in chain if isinstance(link, SpectralNorm)), None)


def normalized_layers(model: nn.Module) -> Iterator[tuple[str, nn.Module, SpectralNorm]]:
    """Yield (name, layer, parametrization) of each spectrally normalized layer of `model`."""
    for name, module in model.named_modules():
        spectral = spectral_of(module)
        if spectral is not None:
            yield name, module, spectral


def converge(model: nn.Module, tolerance: float = 1e-5) -> dict[str, float]:
    """Iterate every spectral norm of `model` to convergence now; return each layer's σ by name."""
    return {name: spectral.converge(original(module), tolerance) for name, module, spectral in normalized_layers(model)}


def original(module: nn.Module) -> Tensor:
    """The unnormalized weight of a spectrally normalized layer."""
    weight: Tensor = module.parametrizations["weight"].original  # type: ignore[index,union-attr]
    return weight


def _advance(module: nn.Module, _inputs: Any) -> None:
    spectral = spectral_of(module)
    if spectral is not None and spectral.training:
        spectral.advance(original(module))


def _unit(x: Tensor) -> Tensor:
    return x / x.norm().clamp_min(torch.finfo(x.dtype).tiny)

"""Spectral normalization: how is a Linear or convolution layer kept at operator norm 1 while it trains?

The weight W is divided by σ = uᵀ W v, where u and v are the leading singular vectors of the *real* linear map at
the true input size (Ryu et al. 2019), followed through training by one warm-started power iteration per step.
As uᵀ W v is linear in W, it is ⟨W, S⟩ with S = ∂σ/∂W: the iteration computes S once, and no graph contains a
convolution for σ.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from lowcurve import checks
from lowcurve.errors import UserError
from lowcurve.layers import _loops
from lowcurve.layers.linear_map import LinearMap, largest_singular
from lowcurve.layers.softplus import is_transformed
from lowcurve.layers.traits import smooth

_FIRST_ITERATIONS = 15
_SCALES = 1e-15, 1e15  # sums of squares of such weights, and their inverses, are float32 numbers


class SpectralNorm(nn.Module):
    """The parametrization W ↦ W / σ(W), with σ = ⟨u, W v⟩ = ⟨W, S⟩ differentiable in W and u, v, S held constant.

    Reading the weight never iterates and eval mode changes nothing: the host layer's forward iterates, once, and
    only in training.
    """

    left: Tensor
    right: Tensor
    slope: Tensor

    def __init__(self, module: nn.Module, input_size: tuple[int, ...] | int | None, iterations: int) -> None:
        super().__init__()
        self.map = LinearMap.of(module, input_size)
        self.iterations = iterations
        weight: Tensor = module.weight.detach()  # type: ignore[operator]
        right = torch.randn(1, *self.map.input_shape, generator=torch.Generator().manual_seed(0))
        self.register_buffer("right", _unit(right.to(weight)))
        self.register_buffer("left", _unit(self.map.apply(weight, self.right)))
        self.register_buffer("slope", torch.zeros_like(weight), persistent=False)
        self.register_load_state_dict_post_hook(SpectralNorm.renew_slope)
        _iterate([(self, weight)], _FIRST_ITERATIONS)

    def forward(self, weight: Tensor) -> Tensor:
        """Return the weight divided by its operator norm."""
        slope = self.slope
        if self.training and torch.is_grad_enabled() and weight.requires_grad:
            slope = slope.clone()  # a later forward may advance the buffer before backward
        if is_transformed(weight):
            return weight / _sigma(weight, slope)
        return _Normalized.apply(weight, slope)[0]

    def right_inverse(self, weight: Tensor) -> Tensor:
        """Assigning to `module.weight` sets the unnormalized weight."""
        return weight

    def sigma(self, weight: Tensor) -> Tensor:
        """The operator norm ⟨u, W v⟩ as far as the iteration has come, at least the smallest positive number."""
        return _sigma(weight, self.slope)

    def converge(self, weight: Tensor, tolerance: float = 1e-5) -> float:
        """Iterate until the singular pair's residual is below `tolerance` σ; return σ."""
        pair = largest_singular(self.map, weight.detach().to(self.right.dtype), self.right, tolerance)
        if pair.sigma > 0:
            self.right.copy_(pair.right)
            self.left.copy_(pair.left)
            self.renew_slope()
        return pair.sigma

    @torch.no_grad()
    def renew_slope(self, _keys: Any = None) -> None:
        """Compute S from u and v, which a state dict holds."""
        self.slope.copy_(self.map.outer(self.left, self.right))


@smooth.register
def _smooth(module: SpectralNorm) -> bool:
    return True


class _Normalized(torch.autograd.Function):
    """(W, S) ↦ (W / σ, σ) with σ = ⟨W, S⟩, whose gradient is (g - ⟨g, W/σ⟩ S) / σ."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
        if _loops.applies(weight, slope):
            normalized, value = _loops.unit(weight, slope)
            sigma = weight.new_tensor(value)
        else:
            sigma = _sigma(weight, slope)
            normalized = weight / sigma
        ctx.save_for_backward(normalized, sigma, slope)
        ctx.set_materialize_grads(False)
        return normalized, sigma

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, grad_sigma: Tensor | None) -> tuple[Tensor | None, None]:
        normalized, sigma, slope = ctx.saved_tensors
        if (
            grad is not None
            and grad_sigma is None
            and not torch.is_grad_enabled()
            and _loops.applies(grad, normalized, slope)
        ):
            return _loops.unit_gradient(grad, normalized, slope, float(sigma)), None
        in_weight = None if grad_sigma is None else grad_sigma * slope
        if grad is not None:
            inner = (grad * normalized).sum()  # not `dot`, whose last bit depends on where in memory its arguments are
            through = torch.addcmul(grad, slope, inner, value=-1) / sigma
            in_weight = through if in_weight is None else through + in_weight
        return in_weight, None


def _sigma(weight: Tensor, slope: Tensor) -> Tensor:
    sigma = (weight.to(slope.dtype) * slope).sum()
    return sigma.clamp_min(torch.finfo(sigma.dtype).tiny)


NormalizedLayer = tuple[str, nn.Module, SpectralNorm]  # its name in the model, the layer, its parametrization


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
    checks.whole(1, iterations=iterations)
    checks.usable(module, "module")
    if spectral_of(module) is not None:
        raise UserError(f"{type(module).__name__} is spectrally normalized already")
    _check_weight(module)
    parametrization = SpectralNorm(module, input_size, iterations)
    parametrization.train(module.training)
    parametrize.register_parametrization(module, "weight", parametrization)
    module.register_forward_pre_hook(_advance)
    return module


def _check_weight(module: nn.Module) -> None:
    """Refuse a weight that a hook computes, and one whose norm no float32 can hold."""
    if not isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
        raise UserError(f"expected a Linear or Conv layer, got {type(module).__name__}")
    if "weight" not in module._parameters and not parametrize.is_parametrized(module, "weight"):
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
    lists: Any = module._modules.get("parametrizations")  # looked up for every module of a net in every step
    if lists is None or "weight" not in lists:
        return None
    return next((link for link in lists["weight"] if isinstance(link, SpectralNorm)), None)


def normalized_layers(model: nn.Module) -> Iterator[NormalizedLayer]:
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


def advance(layers: Iterable[NormalizedLayer]) -> None:
    """Do now, for all layers at a time, what each layer's forward would do: follow the weight.

    In one go, not between large convolutions, the many small operations find the processor's caches warm; and
    `held` forwards can be repeated.
    """
    _follow([(spectral, original(module)) for _, module, spectral in layers])


def normalize(layers: Iterable[NormalizedLayer]) -> list[Any]:
    """Compute the normalized weights of all layers in one go, for `torch.nn.utils.parametrize.cached` to keep."""
    return [module.weight for _, module, _ in layers]


@contextmanager
def held(layers: Iterable[NormalizedLayer]) -> Iterator[None]:
    """Let no forward of these layers iterate inside this context, in training mode either."""
    iterating = [spectral for _, _, spectral in layers if spectral.training]
    for spectral in iterating:
        spectral.training = False
    try:
        yield
    finally:
        for spectral in iterating:
            spectral.training = True


def _advance(module: nn.Module, _inputs: Any) -> None:
    spectral = spectral_of(module)
    if spectral is not None:
        _follow([(spectral, original(module))])


def _follow(layers: list[tuple[SpectralNorm, Tensor]]) -> None:
    """Iterate those in training mode, each as often as it is set to."""
    layers = list({id(layer[0]): layer for layer in layers if layer[0].training}.values())  # once where it is shared
    for iterations in sorted({spectral.iterations for spectral, _ in layers}):
        _iterate([layer for layer in layers if layer[0].iterations == iterations], iterations)


@torch.no_grad()
def _iterate(layers: list[tuple[SpectralNorm, Tensor]], iterations: int) -> None:
    """Replace v by Wᵀu and u by W v, of unit length, `iterations` times; then renew S."""
    sides: dict[bool, list[tuple[SpectralNorm, Tensor]]] = {True: [], False: []}
    for layer in layers:
        sides[_in_loops(*layer)].append(layer)
    for in_loops, chosen in sides.items():
        if chosen:
            iterate = _loops.power_iterations if in_loops else _power_iterations
            weights = [weight.detach().to(spectral.right.dtype) for spectral, weight in chosen]
            maps = [spectral.map for spectral, _ in chosen]
            left, right, slope = ([getattr(s, name) for s, _ in chosen] for name in ("left", "right", "slope"))
            torch._foreach_copy_(slope, iterate(maps, weights, left, right, iterations))


def _in_loops(spectral: SpectralNorm, weight: Tensor) -> bool:
    """Whether the compiled loops can iterate: a plain convolution of images."""
    plain = spectral.map.groups == 1 and not spectral.map.circular and spectral.map.dilation == (1, 1)
    vectors = spectral.left, spectral.right
    return plain and _loops.applies(weight, *vectors) and all(vector.is_contiguous() for vector in vectors)


def _power_iterations(
    maps: list[LinearMap], weights: list[Tensor], left: list[Tensor], right: list[Tensor], iterations: int
) -> list[Tensor]:
    with torch.autocast(weights[0].device.type, enabled=False):
        for _ in range(iterations):
            _assign_units(right, [m.adjoint(w, u) for m, w, u in zip(maps, weights, left, strict=True)])
            _assign_units(left, [m.apply(w, v) for m, w, v in zip(maps, weights, right, strict=True)])
        return [m.outer(u, v) for m, u, v in zip(maps, left, right, strict=True)]


def _assign_units(buffers: list[Tensor], values: list[Tensor]) -> None:
    norms = torch._foreach_norm(values)
    torch._foreach_clamp_min_(norms, torch.finfo(values[0].dtype).tiny)
    torch._foreach_div_(values, norms)
    torch._foreach_copy_(buffers, values)


def _unit(x: Tensor) -> Tensor:
    return x / x.norm().clamp_min(torch.finfo(x.dtype).tiny)

"""Spectral normalization: how is a Linear or convolution layer kept at operator norm 1 while it trains?

The weight W is divided by σ = uᵀ W v, where u and v are the leading singular vectors of the *real* linear map at
the true input size (Ryu et al. 2019), followed through training by warm power iterations (`linalg/following.py`).
As uᵀ W v is linear in W, it is ⟨W, S⟩ with S = ∂σ/∂W: the iteration computes S once, and no graph contains a
convolution for σ.

u and v are what training remembers. S is derived: in training from u and v, in eval mode from the weight itself, anew
whenever that has changed, by an optimizer, a state dict, an average of models or whoever.
"""

from typing import Any, Self

import torch
from torch import Tensor, nn

from lowcurve.compat import write_count
from lowcurve.kernels.engine import is_transformed, repeated_in_backward, snapshot
from lowcurve.kernels.unit import unit_weights
from lowcurve.layers.traits import smooth
from lowcurve.linalg.grain import grain
from lowcurve.linalg.linear_map import LinearMap
from lowcurve.linalg.singular import SingularPair, largest_singular
from lowcurve.observe import constant

_EVAL_TOLERANCE = 1e-4  # of the singular pair's residual


class SpectralNorm(nn.Module):
    """The parametrization W ↦ W / σ(W), with σ = ⟨u, W v⟩ = ⟨W, S⟩ differentiable in W and u, v, S held constant.

    In training the host layer's forward follows the weight. `eval()`, and in any mode the first reading after a change
    of the weight, computes S to convergence; u and v stay, so that training does not notice that somebody looked.
    `mark` is a checksum of the weight that S was computed from, 0 where that was in training.
    """

    left: Tensor
    right: Tensor
    slope: Tensor
    mark: Tensor

    def __init__(self, module: nn.Module, input_size: tuple[int, ...] | int | None, iterations: int) -> None:
        super().__init__()
        self.map = LinearMap.of(module, input_size)
        self.iterations = iterations
        self.stands_still = False  # whether no forward changes u and v, in whatever mode
        self.unit: Tensor | None = None  # the normalized weight, where it was computed for all layers of a model
        self.chain: tuple[nn.Module, ...] = ()  # the parametrizations that this one is part of, for its weight
        self.checked: Any = None  # versions of weight and slope that were found to belong together
        weight: Tensor = module.weight.detach()  # type: ignore[operator]
        self.register_buffer("right", grain(weight.new_empty(1, *self.map.input_shape), 1.0).clone())
        self.register_buffer("left", weight.new_zeros(1, *self.map.output_shape))
        self.register_buffer("slope", torch.zeros_like(weight), persistent=False)
        self.register_buffer("mark", weight.new_zeros(2), persistent=False)
        self.register_load_state_dict_post_hook(SpectralNorm.renew_slope)
        if weight.device.type != "meta":
            self.converge(weight, _EVAL_TOLERANCE)

    def forward(self, weight: Tensor) -> Tensor:
        """Return the weight divided by its operator norm."""
        if self.unit is not None and not repeated_in_backward():
            return self.unit
        if not self.training or (self.chain and weight is self.chain[0].original):
            self.refresh(weight)
        slope = self.slope
        if self.training and torch.compiler.is_compiling():
            slope = snapshot(slope)
        elif self.training and not self.stands_still and torch.is_grad_enabled() and weight.requires_grad:
            slope = slope.clone()  # a later forward may advance the buffer before backward
        if is_transformed(weight):
            return weight / _sigma(weight, slope)
        if self.training or weight.requires_grad or torch.is_inference_mode_enabled():
            return unit_weights([weight], [slope])[0]
        version = (weight.dtype, weight.device, *self.written(weight))
        return constant(self, version, lambda: unit_weights([weight], [slope])[0])

    def right_inverse(self, weight: Tensor) -> Tensor:
        """Assigning to `module.weight` sets the unnormalized weight."""
        return weight

    def train(self, mode: bool = True) -> Self:
        """Change the mode; on the way to eval mode look whether the weight has changed."""
        super().train(mode)
        self.checked = None
        if not mode and self.chain:
            self.refresh(self.given())
        return self

    def given(self) -> Tensor:
        """The weight that this parametrization is applied to: the original one, or what others made of it."""
        weight: Tensor = self.chain[0].original  # type: ignore[assignment]
        for link in self.chain[0]:  # type: ignore[attr-defined]
            if link is self:
                break
            weight = link(weight)
        return weight

    def sigma(self, weight: Tensor) -> Tensor:
        """The operator norm ⟨u, W v⟩ as far as the iteration has come, or 1 where that is no positive number."""
        return _sigma(weight, self.slope)

    @torch.no_grad()
    def refresh(self, weight: Tensor) -> None:
        """Compute S to convergence unless it belongs to this very weight; a look at version numbers, mostly."""
        if self.stands_still or is_transformed(weight) or type(weight) not in (Tensor, nn.Parameter) or weight.is_meta:
            return
        if self.written(weight) == self.checked:
            return
        mark = _checksum(weight).to(self.mark)
        if not torch.equal(mark, self.mark) and bool(mark.isfinite().all()):
            pair = self._largest(weight, _EVAL_TOLERANCE)
            if pair.sigma > 0:
                self.slope.copy_(self.map.outer(pair.left, pair.right))
            self.mark.copy_(mark)
        self.checked = self.written(weight)

    def written(self, weight: Tensor) -> tuple[int, ...]:
        """Tell the versions of weight and slope, by which a later look knows whether either has changed."""
        return (id(weight), *map(write_count, (weight, self.slope, self.mark)))

    @torch.no_grad()
    def converge(self, weight: Tensor, tolerance: float = 1e-5) -> float:
        """Take u, v and S to convergence, until the singular pair's residual is below `tolerance` σ; return σ."""
        pair = self._largest(weight, tolerance)
        if pair.sigma > 0:
            self.right.copy_(pair.right)
            self.left.copy_(pair.left)
            self.renew_slope()
            self.mark.copy_(_checksum(weight))
        return pair.sigma

    def _largest(self, weight: Tensor, tolerance: float) -> SingularPair:
        """Find the singular pair of this weight, whatever the present vectors are: they may be a trap."""
        weight, start = weight.detach().to(self.slope.dtype), grain(self.right, 1.0)
        with torch.autocast(weight.device.type, enabled=False):
            return largest_singular(self.map, weight, start, tolerance)

    @torch.no_grad()
    def renew_slope(self, _keys: Any = None) -> None:
        """Compute S from u and v, which a state dict holds."""
        self.slope.copy_(self.map.outer(self.left, self.right))
        self.mark.zero_()
        self.checked = None


@smooth.register
def _smooth(module: SpectralNorm) -> bool:
    return True


def _sigma(weight: Tensor, slope: Tensor) -> Tensor:
    sigma = (weight.to(slope.dtype) * slope).sum()
    return torch.where(sigma < torch.finfo(sigma.dtype).tiny, torch.ones_like(sigma), sigma)


def _checksum(weight: Tensor) -> Tensor:
    """Two sums that hardly any change of the weight leaves as they are."""
    values = weight.detach().flatten().double()
    places = torch.linspace(1, 2, len(values), dtype=torch.float64, device=weight.device)
    return torch.stack([(values * places).sum(), (values.square() * places).sum().sqrt()])

r"""Residual blocks that are 1-Lipschitz by construction: how can x stay in the sum, and no norm be followed?

.. math:: h(x) = x - W C \, s(W^T x + b), \qquad C = 2 T^{-1}, \quad
          T_{ii} = Σ_j |W^T W|_{ij} \, q_j / q_i,

with s elementwise of slope in [0, 1] and q > 0 learned (SDP-based Lipschitz layers: Araujo et al. 2023). Proof. T − WᵀW
has the q-weighted row sums T_ii q_i − (WᵀW)_ii q_i ≥ Σ_{j≠i} |WᵀW|_ij q_j, is diagonally dominant after scaling by q,
and so WᵀW ⪯ T. Between two inputs that are v apart, s(z') − s(z) = D Wᵀv with D diagonal in [0, 1]; with u = Wᵀv

.. math:: ‖h(x') - h(x)‖² = ‖v‖² - 2 u^T C D u + u^T D C \, W^T W \, C D u
          ≤ ‖v‖² - 4 Σ_i \frac{u_i²}{T_{ii}} (d_i - d_i²) ≤ ‖v‖².

*Convolutions.* On an infinite image WᵀW is a convolution by the autocorrelation of the kernel, and Σ_j |WᵀW|_ij the sum
of its absolute taps, the same at every pixel. Circular padding adds taps up that meet: no row sum grows. Zero padding
restricts the image (W P, P a projection) and the outputs (R W P): then R Wᵀ P W Rᵀ ⪯ R WᵀW Rᵀ ⪯ R T Rᵀ. So one T holds
for every size of the image, for both paddings.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lowcurve import checks
from lowcurve.errors import UserError
from lowcurve.layers.softplus import CenteredSoftplus
from lowcurve.layers.traits import constants, plain, smooth

PADDING_MODES = ("zeros", "circular")
FLOOR = 1e-6  # no T is smaller: it may always be larger, and 1/T is what gradients are multiplied by
_LARGEST_LOG = 30.0  # of q and 1/q


class _LipschitzResidual(nn.Module):
    """What the dense and the convolutional block share: Wᵀ as `weight`, (hidden, channels, …), b, log q and s."""

    def __init__(self, shape: tuple[int, ...], activation: nn.Module | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(shape))
        self.bias = nn.Parameter(torch.zeros(shape[0]))
        self.log_q = nn.Parameter(torch.zeros(shape[0]))
        self.activation = CenteredSoftplus() if activation is None else activation
        check_slope(self.activation)
        nn.init.orthogonal_(self.weight)

    def scale(self) -> Tensor:
        """C = 2/T, (hidden,); in eval mode computed in float64 and then rounded, so that nothing depends on the way."""
        dtype = self.weight.dtype if self.training else torch.float64
        sums = self.row_sums(self.weight.to(dtype), self.log_q.to(dtype))
        return (2 / sums.clamp_min(FLOOR)).to(self.weight.dtype)

    def row_sums(self, weight: Tensor, log_q: Tensor) -> Tensor:
        """Σ_j |WᵀW|_ij q_j / q_i, (hidden,)."""
        log_q = log_q.clamp(-_LARGEST_LOG, _LARGEST_LOG)
        return (overlaps(weight) * (log_q - log_q.unsqueeze(1)).exp()).sum(1)

    def back(self, scale: Tensor) -> Tensor:
        """Return W C as the weight of a layer like that of `weight`."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        """Show the sizes."""
        return f"{self.weight.shape[1]}, hidden={self.weight.shape[0]}"


class LipschitzResidual(_LipschitzResidual):
    """The block on vectors, (N, …, features) to the same shape, with `hidden` units inside.

    >>> block = LipschitzResidual(4, hidden=6, activation=nn.ReLU())
    >>> x, y = torch.rand(2, 100, 4)
    >>> bool(((block(x) - block(y)).norm(dim=1) <= 1.00001 * (x - y).norm(dim=1)).all())
    True
    """

    def __init__(self, features: int, hidden: int | None = None, activation: nn.Module | None = None) -> None:
        hidden = features if hidden is None else hidden
        checks.whole(1, 2**31 - 1, features=features, hidden=hidden)
        super().__init__((hidden, features), activation)

    def back(self, scale: Tensor) -> Tensor:
        """W C, (features, hidden)."""
        return (self.weight * scale.unsqueeze(1)).mT

    def forward(self, x: Tensor) -> Tensor:
        """Return x − W C s(Wᵀx + b)."""
        inner = self.activation(F.linear(x, self.weight, self.bias))
        return x - F.linear(inner, self.back(self.scale()))


class LipschitzResidual2d(_LipschitzResidual):
    """The block on images (N, channels, H, W): W is a convolution, with an odd kernel that keeps the size.

    `padding_mode` is "zeros" or "circular".
    """

    def __init__(
        self,
        channels: int,
        hidden: int | None = None,
        kernel_size: int = 3,
        activation: nn.Module | None = None,
        padding_mode: str = "zeros",
    ) -> None:
        hidden = channels if hidden is None else hidden
        checks.whole(1, 2**31 - 1, channels=channels, hidden=hidden)
        check_kernel(kernel_size)
        checks.choice(PADDING_MODES, padding_mode=padding_mode)
        super().__init__((hidden, channels, kernel_size, kernel_size), activation)
        self.padding_mode = padding_mode

    def back(self, scale: Tensor) -> Tensor:
        """W C as a kernel, (channels, hidden, k, k): the transposed convolution is one with the kernel turned round."""
        return (self.weight * scale.view(-1, 1, 1, 1)).transpose(0, 1).flip(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Return x − W C s(Wᵀx + b)."""
        inner = self.activation(self._convolve(x, self.weight, self.bias))
        return x - self._convolve(inner, self.back(self.scale()))

    def _convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        padding = weight.shape[-1] // 2
        if self.padding_mode == "circular":
            return F.conv2d(F.pad(x, (padding,) * 4, mode="circular"), weight, bias)
        return F.conv2d(x, weight, bias, padding=padding)

    def extra_repr(self) -> str:
        """Show the sizes and the padding."""
        return f"{super().extra_repr()}, kernel_size={self.weight.shape[-1]}, padding_mode={self.padding_mode!r}"


def overlaps(weight: Tensor) -> Tensor:
    """Return |WᵀW|, (hidden, hidden), of a matrix Wᵀ; of a kernel, the sum of the absolute taps of its correlations."""
    if weight.dim() == 2:
        return (weight @ weight.mT).abs()
    return F.conv2d(weight, weight, padding=weight.shape[-1] - 1).abs().sum((2, 3))


def check_kernel(kernel_size: int) -> None:
    """Refuse a kernel that does not keep the size of an image."""
    checks.whole(1, 63, kernel_size=kernel_size)
    if kernel_size % 2 == 0:
        raise UserError(f"expected an odd kernel_size, which keeps the size of an image, got {kernel_size}; add 1")


def check_slope(activation: nn.Module) -> None:
    """Refuse an activation that is not known to have slopes in [0, 1] everywhere."""
    checks.modules(activation=activation)
    known = constants(activation)
    if known is None or known.lipschitz > 1 or not known.increasing:
        raise UserError(
            f"expected an activation with slopes in [0, 1] (CenteredSoftplus, ReLU, Tanh), got "
            f"{type(activation).__name__}; one of your own registers lowcurve.layers.traits.constants"
        )


@smooth.register
def _smooth(module: _LipschitzResidual) -> bool:
    return True


class _PlainResidual(nn.Module):
    """x − outer(s(inner(x))): what is left of a block where its weights do not change."""

    def __init__(self, inner: nn.Module, activation: nn.Module, outer: nn.Module) -> None:
        super().__init__()
        self.inner, self.activation, self.outer = inner, activation, outer

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block."""
        return x - self.outer(self.activation(self.inner(x)))


@plain.register
def _plain_dense(module: LipschitzResidual) -> nn.Module:
    return _plain(module, nn.Linear)


@plain.register
def _plain_images(module: LipschitzResidual2d) -> nn.Module:
    kernel = module.weight.shape[-1]
    settings: dict[str, Any] = {"padding": kernel // 2, "padding_mode": module.padding_mode}
    return _plain(module, partial(nn.Conv2d, kernel_size=kernel, **settings))


@torch.no_grad()
def _plain(module: _LipschitzResidual, layer: Callable[..., nn.Module]) -> nn.Module:
    with torch.device("meta"):  # no weights are drawn that others take their place
        channels, hidden = module.weight.shape[1], module.weight.shape[0]
        inner, outer = layer(channels, hidden), layer(hidden, channels, bias=False)
    inner.weight, inner.bias = (nn.Parameter(part.clone(), part.requires_grad) for part in (module.weight, module.bias))
    outer.weight = nn.Parameter(module.back(module.scale()).contiguous(), module.weight.requires_grad)
    return _PlainResidual(inner, module.activation, outer)

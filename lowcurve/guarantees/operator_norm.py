r"""How large is the operator norm of a Linear or convolution layer? A lower estimate and a guaranteed upper bound.

A zero-padded convolution on n points is a *compression* of the circular convolution on ℤ_N for every N ≥ n + p: the
input sits in [0, n), what the padding reads sits in [n, N), and outputs are a choice of rows. So with the symbol
Ŵ(ξ) = Σ_j W_j e^{-2πi jξ/N}, of shape (out, in), and stride s dividing N,

.. math:: ‖W‖ ≤ s^{-1/2} \max_ξ ‖[Ŵ(ξ), Ŵ(ξ + N/s), …, Ŵ(ξ + (s-1)N/s)]‖_2,

the s aliases side by side (in d dimensions along each of them), with equality for circular padding
(Sedghi et al. 2019). The bound holds at every size, it is not asymptotic; small layers are written out instead.
"""

import math

import torch
from torch import Tensor, nn

from lowcurve import checks
from lowcurve.errors import UserError
from lowcurve.guarantees.calculus import Gains
from lowcurve.linalg.linear_map import LinearMap
from lowcurve.linalg.singular import largest_singular
from lowcurve.random import generator
from lowcurve.types import Bound, Estimate

# Bounds speak of the real-valued function and are computed in float64. Sums of n non-negative terms are right to
# n·2⁻⁵³: this slack covers 10⁹ of them. Where terms cancel (Gram matrices) the error is added, see
# `_largest_singular_value`. What float32 does to a network's values is not in it: `lowcurve.guarantees.rounding`.
SLACK = 1 + 1e-6
UNIT = 2.0**-53
DENSE_LIMIT = 1024  # the smaller side up to which a layer is written out as a matrix (a fraction of a second)


def operator_norm(module: nn.Module, input_size: tuple[int, ...] | int | None = None) -> Estimate:
    """Estimate ‖W‖₂ from below, by Lanczos iteration in float64, at the spatial size `input_size` of the input.

    >>> layer = nn.Linear(2, 2)
    >>> layer.weight.data = torch.tensor([[3.0, 0.0], [0.0, 4.0]])
    >>> round(operator_norm(layer).value, 6)
    4.0
    """
    checks.usable(module, "module")
    linear_map = LinearMap.of(module, input_size)
    weight = effective_weight(module)
    start = torch.randn(1, *linear_map.input_shape, generator=generator(0), dtype=torch.float64)
    pair = largest_singular(linear_map, weight, start, tolerance=1e-5)
    return Estimate(pair.sigma, pair.residual, pair.iterations)


def operator_norm_bound(module: nn.Module, input_size: tuple[int, ...] | int | None = None) -> Bound:
    """Bound ‖W‖₂ from above at the spatial size `input_size` of the input; stride, padding, dilation, groups: any.

    >>> operator_norm_bound(nn.Conv2d(1, 1, 1), 4).method
    'eigenvalues of the dense matrix'
    """
    checks.usable(module, "module")
    linear_map = LinearMap.of(module, input_size)
    return spectral_bound(linear_map, effective_weight(module))


def effective_weight(module: nn.Module) -> Tensor:
    """Return the weight that the layer applies (after any parametrization), in float64 on the processor."""
    weight: Tensor = module.weight  # type: ignore[assignment]
    if not bool(weight.isfinite().all()):
        raise UserError(f"expected finite weights, got NaN or infinity in {type(module).__name__}; train it again")
    return weight.detach().cpu().double()


def spectral_bound(linear_map: LinearMap, weight: Tensor) -> Bound:
    """Bound the operator norm of `weight` acting as `linear_map`, by the dense matrix or by its Fourier symbol."""
    sides = math.prod(linear_map.input_shape), math.prod(linear_map.output_shape)
    if min(sides) <= DENSE_LIMIT:
        return Bound(_dense_norm(linear_map, weight) * SLACK, "eigenvalues of the dense matrix")
    return Bound(fourier_bound(linear_map, weight) * SLACK, "largest singular value of the Fourier symbol")


def gains(linear_map: LinearMap, weight: Tensor) -> Gains:
    """Return bounds on ‖W‖₂→₂, ‖W‖₁→₁ and ‖W‖₁→₂ (largest column norms); the last two are exact but for the slack."""
    ones = weight.new_ones(1, *linear_map.output_shape)
    n11 = float(linear_map.adjoint(weight.abs(), ones).max())
    n12 = n11 if _overlaps(linear_map) else float(linear_map.adjoint(weight.square(), ones).max()) ** 0.5
    return Gains(spectral_bound(linear_map, weight).value, n11 * SLACK, n12 * SLACK)


def row_norms(linear_map: LinearMap, weight: Tensor) -> Tensor:
    """Return bounds on the ℓ₂ norms of the rows of W, one per output, of shape (1, *output_shape)."""
    ones = weight.new_ones(1, *linear_map.input_shape)
    if _overlaps(linear_map):  # a window meets an input twice: only the ℓ₁ norm is simple
        return linear_map.apply(weight.abs(), ones) * SLACK
    return linear_map.apply(weight.square(), ones).sqrt() * SLACK


def fourier_bound(linear_map: LinearMap, weight: Tensor) -> float:
    """Bound ‖W‖₂ by the largest singular value of the aliased Fourier symbol on a grid that is large enough."""
    if not linear_map.stride:
        return _largest_singular_value(weight)
    if linear_map.circular:
        return _circular_bound(linear_map, weight)
    grid = tuple(
        s * math.ceil((n + max(padding)) / s)
        for n, s, padding in zip(linear_map.input_shape[1:], linear_map.stride, linear_map.padding, strict=True)
    )
    return _symbol_norm(linear_map, weight, grid, linear_map.stride)


def _circular_bound(linear_map: LinearMap, weight: Tensor) -> float:
    """Circular padding: exact on ℤ_n where the stride divides n; otherwise rows of the unstrided map, some repeated."""
    size, output, stride = linear_map.input_shape[1:], linear_map.output_shape[1:], linear_map.stride
    if all(n == s * m for n, s, m in zip(size, stride, output, strict=True)):
        return _symbol_norm(linear_map, weight, size, stride)
    repeats = [int(torch.bincount(torch.arange(m) * s % n).max()) for n, s, m in zip(size, stride, output, strict=True)]
    return math.prod(repeats) ** 0.5 * _symbol_norm(linear_map, weight, size, (1,) * len(size))


def _symbol_norm(linear_map: LinearMap, weight: Tensor, grid: tuple[int, ...], stride: tuple[int, ...]) -> float:
    """Return s^{-1/2} max_ξ ‖[Ŵ(ξ + aliases)]‖₂ of the circular convolution on `grid`, the largest over groups."""
    dims = len(grid)
    kernel = weight.view(linear_map.groups, -1, *weight.shape[1:])  # (groups, out/groups, in/groups, *kernel)
    for axis, (n, dilation) in enumerate(zip(grid, linear_map.dilation, strict=True)):
        kernel = _placed(kernel, axis + 3, n, dilation)
    symbol = torch.fft.fftn(kernel, dim=tuple(range(3, 3 + dims)))
    for axis, s in enumerate(stride):
        symbol = symbol.unflatten(3 + 2 * axis, (s, -1))  # (..., alias, frequency, ...)
    symbol = symbol[..., : symbol.shape[-1] // 2 + 1]  # W is real: the norms at ξ and -ξ agree
    aliases = [3 + 2 * axis for axis in range(dims)]
    frequencies = [4 + 2 * axis for axis in range(dims)]
    symbol = symbol.permute(0, *frequencies, 1, 2, *aliases).flatten(dims + 2)  # (..., out, in · aliases)
    return _largest_singular_value(symbol) / math.prod(stride) ** 0.5


def _placed(kernel: Tensor, axis: int, grid: int, dilation: int) -> Tensor:
    """Put the taps of a kernel at j·dilation mod grid along one axis (taps that meet there add up)."""
    taps = torch.arange(kernel.shape[axis], device=kernel.device) * dilation % grid
    shape = [grid if i == axis else n for i, n in enumerate(kernel.shape)]
    return kernel.new_zeros(shape).index_add_(axis, taps, kernel)


def _dense_norm(linear_map: LinearMap, weight: Tensor) -> float:
    """Write W (or Wᵀ) out on the smaller side and return its largest singular value."""
    inputs, outputs = math.prod(linear_map.input_shape), math.prod(linear_map.output_shape)
    if inputs <= outputs:
        basis = torch.eye(inputs, dtype=weight.dtype, device=weight.device).view(-1, *linear_map.input_shape)
        return _largest_singular_value(linear_map.apply(weight, basis).flatten(1))
    basis = torch.eye(outputs, dtype=weight.dtype, device=weight.device).view(-1, *linear_map.output_shape)
    return _largest_singular_value(linear_map.adjoint(weight, basis).flatten(1))


def _largest_singular_value(matrices: Tensor) -> float:
    """Bound the largest singular value over a batch of matrices, from the smaller Gram matrix of each.

    The Gram matrix of p rows with n entries is computed with an error of at most γ_n ‖A‖_F² in norm, its eigenvalues
    with one of at most 10 p u ‖A‖_F², and A itself (a Fourier transform, a product with a batch norm's factors) with
    one of at most 64 u ‖A‖_F. All three are added.
    """
    if matrices.shape[-2] > matrices.shape[-1]:
        matrices = matrices.mT
    scale = float(matrices.abs().max()) if matrices.numel() else 0.0
    if scale == 0 or not math.isfinite(scale):
        return scale
    matrices = matrices / scale
    gram = matrices @ matrices.mH
    frobenius = float(matrices.abs().square().sum((-2, -1)).max()) ** 0.5
    doubtful = (2 * matrices.shape[-1] + 10 * matrices.shape[-2] + 2) * UNIT * frobenius**2
    largest = float(torch.linalg.eigvalsh(gram).max().clamp_min(0))
    return scale * ((largest + doubtful) ** 0.5 + 64 * UNIT * frobenius)


def _overlaps(linear_map: LinearMap) -> bool:
    """Tell whether circular padding lets one window meet the same input twice."""
    return linear_map.circular and any(
        d * (k - 1) + 1 > n
        for n, k, d in zip(linear_map.input_shape[1:], linear_map.kernel, linear_map.dilation, strict=True)
    )

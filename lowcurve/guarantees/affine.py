"""Which steps are affine, and what is known of them? Layers, batch norm and normalization, average pooling."""

from abc import abstractmethod
from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from lowcurve.guarantees import calculus
from lowcurve.guarantees.calculus import Block, Gains
from lowcurve.guarantees.operator_norm import SLACK, gains, row_norms
from lowcurve.guarantees.steps import Ball, Reach, Step, spread
from lowcurve.linalg.linear_map import LinearMap


class Affine(Step):
    """x ↦ A x + c. `absolute` applies |A|; `rows` are the ℓ₂ norms of A's rows, `schur` ≥ ‖|A|‖₂.

    Computing a row takes at most `terms` roundings in a row, computing Aᵀ at most `back_terms`; `offset` is the sum of
    the sizes of what c is computed from. Where several operations were made one, a number between them is at most
    `inside` (1 + max|x|), for Aᵀ too, and what is lost of it grows by at most `stretch` on the way.
    """

    gains: Gains
    rows: Tensor
    schur: float
    offset: Tensor
    terms: int
    back_terms: int
    inside: float = 0.0
    stretch: float = 1.0

    @abstractmethod
    def absolute(self, sizes: Tensor) -> Tensor:
        """Return |A| applied to a batch of non-negative vectors."""

    def block(self, name: str, *blocks: Block) -> Block:
        """The rule for linear maps."""
        return calculus.linear(blocks[0], self.gains)

    def reach(self, reaches: tuple[Reach, ...], centers: tuple[Tensor, ...], ball: Ball | None) -> Reach:
        """Row k moves by at most ‖A_k‖₂ times the norm of the input's move, and at most Σ_j |A_kj| times its parts."""
        (before,) = reaches
        return Reach(self.gains.n22 * before.lipschitz, self.parts(before.lipschitz, before.rows))

    def parts(self, norm: Tensor, parts: Tensor) -> Tensor:
        """Bound |A Δ| coordinate by coordinate for all Δ with ‖Δ‖₂ ≤ `norm`, |Δ_k| ≤ `parts`_k."""
        by_parts = self.absolute(parts) * SLACK
        return torch.fmin(by_parts, self.rows * spread(norm, by_parts))


class Linear(Affine):
    """A Linear or convolution layer, any batch norm that follows folded in: `offset` and `terms` remember what was."""

    def __init__(
        self,
        linear_map: LinearMap,
        weight: Tensor,
        bias: Tensor | None,
        offset: Tensor | None = None,
        extra_terms: int = 0,
    ) -> None:
        self.map, self.weight, self.extra_terms = linear_map, weight, extra_terms
        self.bias = weight.new_zeros(len(weight)) if bias is None else bias
        self.sizes = self.bias.abs() if offset is None else offset
        self.terms = weight[0].numel() + 1 + extra_terms
        self.back_terms = weight.numel() // (weight.shape[1] * linear_map.groups) + 1 + extra_terms

    @cached_property
    def gains(self) -> Gains:  # type: ignore[override]
        """Bounds on the operator norms."""
        return gains(self.map, self.weight)

    @cached_property
    def rows(self) -> Tensor:  # type: ignore[override]
        """Bounds on the rows' norms."""
        return row_norms(self.map, self.weight)

    @cached_property
    def schur(self) -> float:  # type: ignore[override]
        """‖|W|‖₂² ≤ ‖W‖₁→₁ ‖W‖_∞→∞."""
        ones = self.weight.new_ones(1, *self.map.input_shape)
        return (self.gains.n11 * float(self.absolute(ones).max()) * SLACK) ** 0.5

    @property
    def offset(self) -> Tensor:  # type: ignore[override]
        """The sizes behind the bias, beside the output."""
        return per_channel(self.sizes, self.map)

    def scaled(self, after: "Channelwise") -> "Linear":
        """Return diag(scale) W x + (scale b + shift) as one layer, whose norm is that of the product."""
        channels = self.weight.shape[0]
        scale, shift, offset = (t.flatten().expand(channels) for t in (after.scale, after.shift, after.offset))
        one = Linear(
            self.map,
            self.weight * scale.view(-1, *(1,) * (self.weight.dim() - 1)),
            scale * self.bias + shift,
            scale.abs() * self.sizes + offset,
            self.extra_terms + after.terms,
        )
        one.stretch = self.stretch * max(1.0, after.schur)
        between = float(self.weight.abs().sum() + self.sizes.sum())
        one.inside = max(1.0, self.inside, between) * max(1.0, after.schur)
        return one

    def evaluate(self, *values: Tensor) -> Tensor:
        """W x + b."""
        return self.map.apply(self.weight, values[0]) + per_channel(self.bias, self.map)

    def absolute(self, sizes: Tensor) -> Tensor:
        """|W| x."""
        return self.map.apply(self.weight.abs(), sizes)


class Channelwise(Affine):
    """A multiple and a shift per channel: batch norm in eval mode, input normalization, multiplication by a number."""

    def __init__(self, scale: Tensor, shift: Tensor, offset: Tensor | None = None, terms: int = 4) -> None:
        self.scale, self.shift = scale, shift  # broadcastable to one batch
        self.offset = shift.abs() if offset is None else offset
        self.terms = self.back_terms = terms
        self.rows = scale.abs() * SLACK
        self.schur = size = float(self.rows.max())
        self.gains = Gains(size, size, size)

    def evaluate(self, *values: Tensor) -> Tensor:
        """Scale and shift."""
        return values[0] * self.scale + self.shift

    def absolute(self, sizes: Tensor) -> Tensor:
        """Scale by the sizes."""
        return sizes * self.scale.abs()


class AveragePool(Affine):
    """Average pooling: a linear map P of one sign with entries at most `largest`, so its norms follow from its sums.

    ‖P‖₂² ≤ ‖P‖₁→₁ ‖P‖_∞→∞ (Schur); ‖column‖₂² ≤ largest · ‖column‖₁, and so for rows. Exact for disjoint windows.
    """

    def __init__(self, pool: Callable[[Tensor], Tensor], largest: float, shape: tuple[int, ...], window: int) -> None:
        self.pool = pool
        ones = torch.ones(1, *shape, dtype=torch.float64, requires_grad=True)
        with torch.enable_grad():
            rows = pool(ones)
            columns = torch.autograd.grad(rows.sum(), ones)[0]
        column, row = (float(sums.detach().abs().max()) * SLACK for sums in (columns, rows))
        self.rows = torch.tensor((largest * row) ** 0.5, dtype=torch.float64)
        self.gains = Gains((column * row) ** 0.5, column, (largest * column) ** 0.5)
        self.schur, self.offset = self.gains.n22, torch.zeros((), dtype=torch.float64)
        self.terms = self.back_terms = window + 2
        self.inside = float(window)  # a sum that is divided

    def evaluate(self, *values: Tensor) -> Tensor:
        """Average over windows."""
        return self.pool(values[0])

    def absolute(self, sizes: Tensor) -> Tensor:
        """Average sizes; a negative divisor changes all signs."""
        return self.pool(sizes).abs()


def per_channel(bias: Tensor, linear_map: LinearMap) -> Tensor:
    """View a bias so that it adds to the layer's output: last dimension for Linear, dimension 1 for convolutions."""
    return bias.view(-1, *(1 for _ in linear_map.stride))

"""What kinds of step does a network consist of, and what is known of each? Its value, its constants, its reach.

A step answers three questions: `evaluate` (its output, in float64), `block` (how Lipschitz and Hessian bounds pass
it: `lowcurve.guarantees.calculus`) and `reach` (how far its outputs move, in norm and coordinate by coordinate).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lowcurve.guarantees import calculus
from lowcurve.guarantees.calculus import Block, Gains
from lowcurve.guarantees.operator_norm import SLACK, gains, row_norms
from lowcurve.layers.linear_map import LinearMap
from lowcurve.layers.traits import constants, constants_between


@dataclass(frozen=True)
class Reach:
    """How far a quantity z can move when the input moves by at most ρ: ‖Δz‖₂ ≤ ρ·`lipschitz`, |Δz_k| ≤ ρ·`rows`_k.

    `lipschitz` has shape (N,), `rows` (N, *shape of z); N = 1 where the statement holds for every input.
    """

    lipschitz: Tensor
    rows: Tensor


@dataclass(frozen=True)
class Ball:
    """The ball of each sample in which a statement has to hold; `radius` has shape (N,). Without one: everywhere."""

    radius: Tensor


class Step(ABC):
    """One operation of the network, with everything that depends on its weights computed once, in float64."""

    @abstractmethod
    def evaluate(self, *values: Tensor) -> Tensor:
        """Return the output for a batch of inputs."""

    @abstractmethod
    def block(self, name: str, *blocks: Block) -> Block:
        """Return the constants from the network's input to this step's output."""

    @abstractmethod
    def reach(self, reaches: tuple[Reach, ...], centers: tuple[Tensor, ...], ball: Ball | None) -> Reach:
        """Return how far the output moves; `centers` are the step's inputs at the balls' centers."""


class Linear(Step):
    """A Linear or convolution layer, any batch norm that follows folded in."""

    def __init__(self, linear_map: LinearMap, weight: Tensor, bias: Tensor | None) -> None:
        self.map, self.weight, self.bias = linear_map, weight, bias
        self.gains = gains(linear_map, weight)
        self.rows = row_norms(linear_map, weight)

    def evaluate(self, *values: Tensor) -> Tensor:
        """W x + b."""
        y = self.map.apply(self.weight, values[0])
        return y if self.bias is None else y + per_channel(self.bias, y, self.map)

    def block(self, name: str, *blocks: Block) -> Block:
        """The rule for linear maps."""
        return calculus.linear(blocks[0], self.gains)

    def reach(self, reaches: tuple[Reach, ...], centers: tuple[Tensor, ...], ball: Ball | None) -> Reach:
        """Row k moves by at most ‖W_k‖₂ times the norm of the input's move, and at most Σ_j |W_kj| times its parts."""
        (before,) = reaches
        by_norm = self.rows * spread(before.lipschitz, before.rows)
        by_parts = self.map.apply(self.weight.abs(), before.rows) * SLACK
        return Reach(self.gains.n22 * before.lipschitz, torch.minimum(by_norm, by_parts))


class Channelwise(Step):
    """A multiple and a shift per channel: batch norm in eval mode, input normalization, multiplication by a number."""

    def __init__(self, scale: Tensor, shift: Tensor) -> None:
        self.scale, self.shift = scale, shift  # broadcastable to one batch
        size = float(scale.abs().max()) * SLACK
        self.gains = Gains(size, size, size)

    def evaluate(self, *values: Tensor) -> Tensor:
        """Scale and shift."""
        return values[0] * self.scale + self.shift

    def block(self, name: str, *blocks: Block) -> Block:
        """The rule for linear maps."""
        return calculus.linear(blocks[0], self.gains)

    def reach(self, reaches: tuple[Reach, ...], centers: tuple[Tensor, ...], ball: Ball | None) -> Reach:
        """Each coordinate by its own factor."""
        (before,) = reaches
        return Reach(self.gains.n22 * before.lipschitz, before.rows * self.scale.abs() * SLACK)


class AveragePool(Step):
    """Average pooling: a linear map P ≥ 0 with entries at most `largest`, so its norms follow from its sums.

    ‖P‖₂² ≤ ‖P‖₁→₁ ‖P‖_∞→∞ (Schur); ‖column‖₂² ≤ largest · ‖column‖₁, and so for rows. Exact for disjoint windows.
    """

    def __init__(self, pool: Callable[[Tensor], Tensor], largest: float, shape: tuple[int, ...]) -> None:
        self.pool = pool
        ones = torch.ones(1, *shape, dtype=torch.float64, requires_grad=True)
        with torch.enable_grad():
            rows = pool(ones)
            columns = torch.autograd.grad(rows.sum(), ones)[0]
        column, row = (float(sums.detach().max()) * SLACK for sums in (columns, rows))
        self.row = (largest * row) ** 0.5
        self.gains = Gains((column * row) ** 0.5, column, (largest * column) ** 0.5)

    def evaluate(self, *values: Tensor) -> Tensor:
        """Average over windows."""
        return self.pool(values[0])

    def block(self, name: str, *blocks: Block) -> Block:
        """The rule for linear maps."""
        return calculus.linear(blocks[0], self.gains)

    def reach(self, reaches: tuple[Reach, ...], centers: tuple[Tensor, ...], ball: Ball | None) -> Reach:
        """As for any linear map."""
        (before,) = reaches
        pooled = self.pool(before.rows) * SLACK
        return Reach(
            self.gains.n22 * before.lipschitz,
            torch.minimum(pooled, self.row * spread(before.lipschitz, pooled)),
        )


class MaxPool(Step):
    """Max-pooling: Lipschitz by the root of the windows' overlap; its slope jumps, so there is no curvature bound."""

    def __init__(self, pool: Callable[[Tensor], Tensor], overlap: int) -> None:
        self.pool = pool
        self.gains = Gains(overlap**0.5, float(overlap), overlap**0.5)

    def evaluate(self, *values: Tensor) -> Tensor:
        """Maximum over windows."""
        return self.pool(values[0])

    def block(self, name: str, *blocks: Block) -> Block:
        """Infinite curvature."""
        return calculus.curved(blocks[0], name, self.gains, float("inf"))

    def reach(self, reaches: tuple[Reach, ...], centers: tuple[Tensor, ...], ball: Ball | None) -> Reach:
        """A maximum moves by at most the largest move in its window."""
        (before,) = reaches
        return Reach(self.gains.n22 * before.lipschitz, self.pool(before.rows))


class Activation(Step):
    """An elementwise activation whose class has registered its `lowcurve.layers.traits.constants`."""

    def __init__(self, module: nn.Module) -> None:
        known = constants(module)
        assert known is not None
        self.module, self.constants = module, known
        size = known.lipschitz
        self.gains = Gains(size, size, size)

    def evaluate(self, *values: Tensor) -> Tensor:
        """s(x)."""
        return self.module(values[0])

    def block(self, name: str, *blocks: Block) -> Block:
        """The rule for elementwise activations."""
        return calculus.curved(blocks[0], name, self.gains, self.constants.curvature * SLACK)

    def reach(self, reaches: tuple[Reach, ...], centers: tuple[Tensor, ...], ball: Ball | None) -> Reach:
        """Everywhere: |s'| ≤ a. In a ball: the slopes that the pre-activations can meet there."""
        (before,) = reaches
        if ball is None:
            return Reach(before.lipschitz * self.constants.lipschitz, before.rows * self.constants.lipschitz)
        slope, _ = self.within(before, centers[0], ball)
        steepest = slope.flatten(1).amax(1)
        return Reach(before.lipschitz * steepest, before.rows * slope)

    def within(self, before: Reach, center: Tensor, ball: Ball) -> tuple[Tensor, Tensor]:
        """Bound (|s'|, |s''|) at the pre-activations that a ball can bring about, coordinate by coordinate."""
        move = before.rows * spread(ball.radius, before.rows)
        slope, bend = constants_between(self.module, center - move, center + move)
        return slope * SLACK, bend * SLACK


class Add(Step):
    """The sum of two branches."""

    def evaluate(self, *values: Tensor) -> Tensor:
        """x + y."""
        return values[0] + values[1]

    def block(self, name: str, *blocks: Block) -> Block:
        """The rule for sums."""
        return calculus.added(*blocks)

    def reach(self, reaches: tuple[Reach, ...], centers: tuple[Tensor, ...], ball: Ball | None) -> Reach:
        """Moves add up."""
        first, second = reaches
        return Reach(first.lipschitz + second.lipschitz, first.rows + second.rows)


class Concatenate(Step):
    """Branches side by side, along one dimension other than the batch."""

    def __init__(self, dim: int) -> None:
        self.dim = dim

    def evaluate(self, *values: Tensor) -> Tensor:
        """Concatenate."""
        return torch.cat(values, self.dim)

    def block(self, name: str, *blocks: Block) -> Block:
        """The rule for concatenation, branch after branch."""
        total = blocks[0]
        for block in blocks[1:]:
            total = calculus.concatenated(total, block)
        return total

    def reach(self, reaches: tuple[Reach, ...], centers: tuple[Tensor, ...], ball: Ball | None) -> Reach:
        """Norms combine as those of orthogonal vectors."""
        lipschitz = torch.stack([reach.lipschitz for reach in reaches]).norm(dim=0)
        return Reach(lipschitz, torch.cat([reach.rows for reach in reaches], self.dim))


class Reshape(Step):
    """Another shape for the same numbers: flatten, view, dropout in eval mode, identity."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape

    def evaluate(self, *values: Tensor) -> Tensor:
        """Reshape each sample."""
        return values[0].reshape(-1, *self.shape)

    def block(self, name: str, *blocks: Block) -> Block:
        """Nothing changes."""
        return blocks[0]

    def reach(self, reaches: tuple[Reach, ...], centers: tuple[Tensor, ...], ball: Ball | None) -> Reach:
        """Reshape the coordinates' moves alike."""
        (before,) = reaches
        return Reach(before.lipschitz, before.rows.reshape(-1, *self.shape))


def spread(per_sample: Tensor, like: Tensor) -> Tensor:
    """View (N,) as (N, 1, ..., 1) beside a batch."""
    return per_sample.view(-1, *(1,) * (like.dim() - 1))


def per_channel(bias: Tensor, like: Tensor, linear_map: LinearMap) -> Tensor:
    """View a bias so that it adds to the layer's output: last dimension for Linear, dimension 1 for convolutions."""
    return bias if not linear_map.stride else bias.view(-1, *(1,) * (like.dim() - 2))

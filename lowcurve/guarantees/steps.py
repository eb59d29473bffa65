"""What kinds of step does a network consist of, and what is known of each? Its value, its constants, its reach.

A step answers three questions: `evaluate` (its output, in float64), `block` (how Lipschitz and Hessian bounds pass
it: `lowcurve.guarantees.calculus`) and `reach` (how far its outputs move, in norm and coordinate by coordinate).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lowcurve.guarantees import calculus
from lowcurve.guarantees.calculus import Block, Gains
from lowcurve.guarantees.operator_norm import SLACK
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
    """The ball of each sample in which a statement has to hold; without one: everywhere.

    `radius` has shape (N,), and so has `blur`: how far any value at the center may be from the truth, by rounding.
    """

    radius: Tensor
    blur: Tensor


class Step(ABC):
    """One operation of the network, with everything that depends on its weights computed once, in float64.

    `gains` are the norms of a step that is a row of the table of bounds; one that is `kinked` has no curvature bound.
    How its result is rounded: `lowcurve.guarantees.rounding`.
    """

    gains: Gains | None = None
    kinked: bool = False

    @abstractmethod
    def evaluate(self, *values: Tensor) -> Tensor:
        """Return the output for a batch of inputs."""

    @abstractmethod
    def block(self, name: str, *blocks: Block) -> Block:
        """Return the constants from the network's input to this step's output."""

    @abstractmethod
    def reach(self, reaches: tuple[Reach, ...], centers: tuple[Tensor, ...], ball: Ball | None) -> Reach:
        """Return how far the output moves; `centers` are the step's inputs at the balls' centers."""


class MaxPool(Step):
    """Max-pooling: Lipschitz by the root of the windows' overlap; its slope jumps, so there is no curvature bound."""

    kinked = True

    def __init__(self, pool: Callable[[Tensor], Tensor], overlap: int) -> None:
        self.pool = pool
        self.gains: Gains = Gains(overlap**0.5, float(overlap), overlap**0.5)

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


class SortedPairs(Step):
    """MaxMin: a permutation that depends on x; its slope jumps where two are alike."""

    kinked = True

    def __init__(self, sort: Callable[[Tensor], Tensor]) -> None:
        self.sort = sort
        self.gains: Gains = Gains(1.0, 1.0, 1.0)

    def evaluate(self, *values: Tensor) -> Tensor:
        """Sort each pair of channels."""
        return self.sort(values[0])

    def block(self, name: str, *blocks: Block) -> Block:
        """Infinite curvature."""
        return calculus.curved(blocks[0], name, self.gains, float("inf"))

    def reach(self, reaches: tuple[Reach, ...], centers: tuple[Tensor, ...], ball: Ball | None) -> Reach:
        """Neither the larger nor the smaller of two moves further than the one that moves most."""
        (before,) = reaches
        return Reach(before.lipschitz, self.largest(before.rows))

    def largest(self, parts: Tensor) -> Tensor:
        """Return for each channel the larger of its pair."""
        return self.sort(parts)[:, ::2].repeat_interleave(2, dim=1)


class Activation(Step):
    """An elementwise activation whose class has registered its `lowcurve.layers.traits.constants`."""

    def __init__(self, module: nn.Module) -> None:
        known = constants(module)
        assert known is not None
        self.module, self.constants = module, known
        self.kinked = math.isinf(known.curvature)
        size = known.lipschitz * SLACK
        self.gains: Gains = Gains(size, size, size)

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
            return Reach(before.lipschitz * self.gains.n22, before.rows * self.gains.n22)
        slope, _ = self.within(before, centers[0], ball)
        steepest = slope.flatten(1).amax(1)
        return Reach(before.lipschitz * steepest, before.rows * slope)

    def within(self, before: Reach, center: Tensor, ball: Ball) -> tuple[Tensor, Tensor]:
        """Bound (|s'|, |s''|) at the pre-activations that a ball can bring about, coordinate by coordinate."""
        move = before.rows * spread(ball.radius, before.rows) * SLACK + spread(ball.blur, before.rows)
        slope, bend = constants_between(self.module, center - move, center + move)
        return slope * SLACK, bend * SLACK


class Add(Step):
    """The sum or difference of two branches."""

    def __init__(self, sign: float = 1.0) -> None:
        self.sign = sign

    def evaluate(self, *values: Tensor) -> Tensor:
        """x ± y."""
        return values[0] + self.sign * values[1]

    def block(self, name: str, *blocks: Block) -> Block:
        """The rule for sums."""
        return calculus.added(*blocks)

    def reach(self, reaches: tuple[Reach, ...], centers: tuple[Tensor, ...], ball: Ball | None) -> Reach:
        """Moves add up."""
        first, second = reaches
        return Reach((first.lipschitz + second.lipschitz) * SLACK, (first.rows + second.rows) * SLACK)


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
        lipschitz = torch.stack([reach.lipschitz for reach in reaches]).norm(dim=0) * SLACK
        return Reach(lipschitz, torch.cat([reach.rows for reach in reaches], self.dim))


class Rearrange(Step):
    """The same numbers in other places, with zeros where there are none: shuffles, zero padding (or cropping)."""

    def __init__(self, arranged: Callable[[Tensor], Tensor]) -> None:
        self.arranged = arranged

    def evaluate(self, *values: Tensor) -> Tensor:
        """Put every number in its place."""
        return self.arranged(values[0])

    def block(self, name: str, *blocks: Block) -> Block:
        """Nothing changes."""
        return blocks[0]

    def reach(self, reaches: tuple[Reach, ...], centers: tuple[Tensor, ...], ball: Ball | None) -> Reach:
        """Rearrange the coordinates' moves alike."""
        (before,) = reaches
        return Reach(before.lipschitz, self.arranged(before.rows))


class Reshape(Rearrange):
    """Another shape for the same numbers: flatten, view, dropout in eval mode, identity."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__(lambda values: values.reshape(-1, *shape))


def spread(per_sample: Tensor, like: Tensor) -> Tensor:
    """View (N,) as (N, 1, ..., 1) beside a batch."""
    return per_sample.view(-1, *(1,) * (like.dim() - 1))

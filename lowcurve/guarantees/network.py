"""A model as a list of steps: values, constants and reach, each by one pass from the input to the logits."""

from dataclasses import dataclass

import torch
from torch import Tensor

from lowcurve.guarantees.affine import Linear
from lowcurve.guarantees.calculus import IDENTITY, Block
from lowcurve.guarantees.operator_norm import SLACK, UNIT
from lowcurve.guarantees.steps import Ball, Reach, Step

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Node:
    """A step with its name in the model and the positions of its inputs; position 0 is the network's input."""

    name: str
    step: Step
    inputs: tuple[int, ...]


@dataclass(frozen=True)
class Network:
    """A model as a list of steps in the order of evaluation: the function that bounds and certificates speak of."""

    nodes: tuple[Node, ...]
    input_size: Shape
    num_outputs: int

    def values(self, x: Tensor) -> list[Tensor]:
        """Return the input and the output of each step, in float64; the last is the logits."""
        values = [x.cpu().double()]
        for node in self.nodes:
            values.append(node.step.evaluate(*(values[i] for i in node.inputs)))
        return values

    def blocks(self) -> list[Block]:
        """Return the constants of the maps from the input to each position, the input itself first."""
        blocks = [IDENTITY]
        for node in self.nodes:
            blocks.append(node.step.block(node.name, *(blocks[i] for i in node.inputs)))
        return blocks

    def reaches(self, values: list[Tensor] | None = None, ball: Ball | None = None) -> list[Reach]:
        """Return how far each position can move: everywhere, or in a ball around inputs whose `values` are given."""
        one = torch.ones(1 if ball is None else len(ball.radius), dtype=torch.float64)
        reaches = [Reach(one, one.view(-1, *(1 for _ in self.input_size)).expand(-1, *self.input_size))]
        for node in self.nodes:
            before = tuple(reaches[i] for i in node.inputs)
            centers = () if values is None else tuple(values[i] for i in node.inputs)
            reaches.append(node.step.reach(before, centers, ball))
        return reaches

    def head(self) -> tuple[Tensor, int]:
        """Split off the last linear layer: its matrix (classes, features) and the position of the features.

        Margins are differences of rows of this matrix, whose norms are known exactly. A model that does not end
        in a Linear layer has the identity for a head.
        """
        last = self.nodes[-1]
        if isinstance(last.step, Linear) and not last.step.map.stride:
            return last.step.weight, last.inputs[0]
        return torch.eye(self.num_outputs, dtype=torch.float64), len(self.nodes)

    def row_distances(self, p: float) -> Tensor:
        """Bound ‖w_a − w_b‖_p for all pairs of rows of the head; p is 2 or ∞. Rows may agree up to rounding."""
        matrix, _ = self.head()
        sizes = torch.linalg.vector_norm(matrix, ord=p, dim=1)
        distances = torch.cdist(matrix, matrix, p=p, compute_mode="donot_use_mm_for_euclid_dist")
        doubtful = 64 * UNIT * (sizes.unsqueeze(0) + sizes.unsqueeze(1))
        return torch.where(torch.eye(len(matrix), dtype=torch.bool), 0.0, distances * SLACK + doubtful)

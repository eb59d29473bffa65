r"""What do the paper's lemma and Theorem 1 say, and what of it holds? The true lemma, and the sum as a heuristic.

The lemma for f = f_L ∘ … ∘ f_1 on the real line holds with the product up to i − 1,

.. math:: |f''/f'| ≤ Σ_i |f_i''/f_i'| Π_{j<i} |f_j'|,

not up to i as printed. Theorem 1, the same with widths n_i in many dimensions, is false: f(x) = s(x) + s(−x) has a
critical point at 0 that is no inflection, so its normalized curvature is unbounded, while every term of the sum is
finite. docs/what-is-true.md has the details.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lowcurve.guarantees.network import Network
from lowcurve.guarantees.steps import Activation

REASON = (
    "not a bound: normalized curvature is infinite wherever the gradient vanishes and the Hessian does not, "
    "whatever the layers' constants"
)


@dataclass(frozen=True)
class Heuristic:
    """A number that is useful for comparison and proves nothing, with the reason why."""

    value: float
    reason: str

    def __float__(self) -> float:
        return self.value


def chain_curvature(first: Sequence[float], second: Sequence[float]) -> float:
    """Bound |f''/f'| of a composition on the line from f_i' and f_i'' at the points where each f_i is evaluated.

    `first` and `second` list f_1', …, f_L' (none zero) and f_1'', …, f_L''.

    >>> chain_curvature([0.5], [0.25])
    0.5
    """
    total, slope = 0.0, 1.0
    for d1, d2 in zip(first, second, strict=True):
        total += abs(d2 / d1) * slope
        slope *= abs(d1)
    return total


def theorem_one(net: Network) -> Heuristic:
    """Return the sum of Theorem 1, Σ_i n_i C_i Π_{j≤i} Lip_j, over the activations of a network.

    n_i is the layer's width, C_i = sup |s''/s'| (β for softplus; infinite where s' vanishes or jumps), and the
    product the Lipschitz bound from the input through layer i.
    """
    blocks, reaches, total = net.blocks(), net.reaches(), 0.0
    for i, node in enumerate(net.nodes, start=1):
        if isinstance(node.step, Activation):
            width = reaches[i].rows[0].numel()
            total += width * node.step.constants.relative * blocks[i].gains.n22
        elif math.isinf(blocks[i].hessian):
            total = math.inf
    return Heuristic(total, REASON)

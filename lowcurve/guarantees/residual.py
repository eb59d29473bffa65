r"""What is known of a block h(x) = x − B s(A x + b) beyond its parts? That it is Lipschitz as a whole, by construction.

With A = Wᵀ, B = W C, C diagonal and positive, and slopes of s in [0, 1], the proof of `lowcurve.layers.lipschitz` gives
for any T with WᵀW ⪯ diag(T), u = Wᵀv and slopes d between two inputs that are v apart

.. math:: ‖Δh‖² ≤ ‖v‖² + Σ_i u_i² c_i d_i (c_i d_i T_i - 2) ≤ ‖v‖² + 2 ε \, u^T C u ≤ (1 + 4 ε (1 + ε)) ‖v‖²,

where c_i T_i ≤ 2 (1 + ε), which also gives W C Wᵀ ⪯ 2 (1 + ε) I. T is bounded from above in float64, so ε is some 10⁻⁶.

In the graph a block is four steps: A, s, B and the difference, whose expansion, slopes and curvature are those of any
network. Only the difference knows more: its reach is at most L times that of x, and D²(h∘F)[v, v] is
Dh·D²F[v, v] + D²h[DF v, DF v], of which the first part grows by L at most and the second by what s adds.
"""

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lowcurve.errors import UserError
from lowcurve.guarantees import calculus
from lowcurve.guarantees.affine import Linear
from lowcurve.guarantees.calculus import Block, Gains
from lowcurve.guarantees.network import Node
from lowcurve.guarantees.operator_norm import SLACK, UNIT
from lowcurve.guarantees.steps import Activation, Ball, Reach, Step, spread
from lowcurve.layers.lipschitz import FLOOR, LipschitzResidual, LipschitzResidual2d
from lowcurve.linalg.linear_map import LinearMap

Block1or2d = LipschitzResidual | LipschitzResidual2d
SCALE_TERMS = 8  # roundings behind one number of C, and of its product with W
ACTIVATION = "activation"  # the name of s in a block


@dataclass(frozen=True)
class Branch:
    """The parts of B s(A x + b), in this order."""

    inner: Linear
    activation: Activation
    outer: Linear

    @property
    def steps(self) -> tuple[Linear, Activation, Linear]:
        """All three."""
        return self.inner, self.activation, self.outer


class Residual(Step):
    """x − branch(x), whose inputs are x and the branch's output; as a map of x it is Lipschitz by `gains.n22`."""

    def __init__(self, branch: Branch, lipschitz: float) -> None:
        self.branch, self.kinked = branch, branch.activation.kinked
        column = 1 + math.prod(step.gains.n11 for step in branch.steps)
        self.gains: Gains = Gains(lipschitz, column * SLACK, lipschitz)

    def evaluate(self, *values: Tensor) -> Tensor:
        """X − y."""
        return values[0] - values[1]

    def block(self, name: str, *blocks: Block) -> Block:
        """What bent before the block passes it by its constants; its own activation bends beside."""
        alone = Block(blocks[0].gains)
        layers = (name, f"{name}.{ACTIVATION}", name)
        for step, layer in zip(self.branch.steps, layers, strict=True):
            alone = step.block(layer, alone)
        return calculus.bent(calculus.linear(blocks[0], self.gains), alone.terms)

    def reach(self, reaches: tuple[Reach, ...], centers: tuple[Tensor, ...], ball: Ball | None) -> Reach:
        """The norm moves by L times that of x, or by the sum of both moves; no coordinate moves further."""
        before, branch = reaches
        by_parts = (before.lipschitz + branch.lipschitz) * SLACK
        lipschitz = torch.minimum(before.lipschitz * self.gains.n22, by_parts)
        rows = (before.rows + branch.rows) * SLACK
        return Reach(lipschitz, torch.minimum(rows, spread(lipschitz, rows)))


def block_nodes(module: Block1or2d, shape: tuple[int, ...], activation: Activation) -> tuple[Node, ...]:
    """Return the steps of a block in eval mode on inputs of this shape; input 0 of a node is that of the block."""
    known = activation.constants
    if known.lipschitz > 1 or not known.increasing:
        raise UserError(
            f"its {type(module.activation).__name__} is not known to have slopes in [0, 1], as its proof needs; use "
            "softplus, ReLU or Tanh, or register constants that are `increasing`"
        )
    twin = copy.deepcopy(module).cpu().double().eval()
    weight, scale = twin.weight.detach(), twin.scale().detach()
    refuse_out_of_range(copy.deepcopy(module).cpu().eval().scale().detach(), scale, SCALE_TERMS)
    lipschitz, doubtful = _constant(twin, scale)
    exact = module.weight.dtype != torch.float64  # what float64 loses in C is nothing to float32
    back, circular = twin.back(scale).detach(), getattr(module, "padding_mode", "") == "circular"
    branch = Branch(
        Linear(same_size(weight, shape, circular), weight, twin.bias.detach()),
        activation,
        Linear(same_size(back, shape, circular), back, None, extra_terms=SCALE_TERMS + (0 if exact else doubtful)),
    )
    names = ("inner", ACTIVATION, "outer")
    nodes = [Node(name, step, (i,)) for i, (name, step) in enumerate(zip(names, branch.steps, strict=True))]
    return (*nodes, Node("", Residual(branch, lipschitz), (0, 3)))


def refuse_out_of_range(computed: Tensor, exact: Tensor, terms: int) -> None:
    """Refuse a factor that a layer derives from its weights where it over- or underflows on the way."""
    off = (computed.double() - exact).abs()
    if not bool((off <= terms * torch.finfo(computed.dtype).eps * exact.abs()).all()):
        raise UserError(f"derives a factor that {computed.dtype} cannot hold from its weights; rescale them")


def same_size(weight: Tensor, shape: tuple[int, ...], circular: bool = False) -> LinearMap:
    """Describe how a matrix acts, or a kernel that keeps the size of an image."""
    if weight.dim() == 2:
        return LinearMap((weight.shape[1],), (weight.shape[0],))
    kernel, size = tuple(weight.shape[2:]), shape[1:]
    padding = tuple((k // 2, k // 2) for k in kernel)
    shapes = (weight.shape[1], *size), (weight.shape[0], *size)
    return LinearMap(*shapes, (1, 1), padding, (1, 1), kernel, circular=circular)


def _constant(module: Block1or2d, scale: Tensor) -> tuple[float, int]:
    """Return L of the block for this C, and how many roundings of float64 may be behind a number of C.

    Sums of products cancel: what rounding makes of each is bounded by the same sum of sizes.
    """
    weight, log_q = module.weight.detach(), module.log_q.detach()
    terms = weight[0].numel() + 2
    sums, sizes = (module.row_sums(w, log_q) for w in (weight, weight.abs()))
    bound = (sums + 2 * terms * UNIT * sizes) * SLACK
    excess = max(float((scale * bound).max()) / 2 - 1, 0.0)
    doubtful = math.ceil(2 * terms * float((sizes / sums.clamp_min(FLOOR)).max()))
    return math.sqrt(1 + 4 * excess * (1 + excess)) * SLACK, doubtful

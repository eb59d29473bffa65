"""How steep and how bent can a network be, anywhere, and which layer is to blame? Data-free bounds and a table."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lowcurve import checks
from lowcurve.guarantees import calculus
from lowcurve.guarantees.calculus import Block
from lowcurve.guarantees.graph import trace_network
from lowcurve.guarantees.network import Network
from lowcurve.guarantees.operator_norm import SLACK
from lowcurve.guarantees.theorem import Heuristic, theorem_one
from lowcurve.layers.traits import learned_logs
from lowcurve.outputs import returning_logits
from lowcurve.types import Bound

_METHOD = "product of layer norms"
_CURVED = "sum over layers of curvature × slopes"


@dataclass(frozen=True)
class Layer:
    """One row of the table.

    `norm` is the layer's own Lipschitz bound, `lipschitz` that from the input through it. `hessian` is what it
    adds to the largest margin's Hessian bound, `share` the part of the whole.
    """

    name: str
    kind: str
    norm: float
    lipschitz: float
    beta: float | None
    gamma: float | None
    hessian: float
    share: float


@dataclass(frozen=True)
class Bounds:
    """Bounds that hold at every input, on ‖∇‖₂ and ‖∇²‖₂ of a network's outputs; ∞ says that there is none.

    `logit_*` have shape (C,), `margin_*` (C, C) for z_a − z_b. `loss_*` are those of the softmax cross-entropy for
    any label. `theorem_one` is the paper's sum, which bounds nothing. Printing shows the table.
    """

    lipschitz: Bound
    logit_lipschitz: Tensor
    logit_hessian: Tensor
    margin_lipschitz: Tensor
    margin_hessian: Tensor
    loss_lipschitz: Bound
    loss_hessian: Bound
    theorem_one: Heuristic
    layers: tuple[Layer, ...]

    def __str__(self) -> str:
        head = f"{'layer':24} {'kind':12} {'norm':>9} {'Lipschitz':>10} {'beta':>8} {'gamma':>8} {'share':>6}"
        lines = [head]
        for row in self.layers:
            numbers = [_short(value, 8) for value in (row.beta, row.gamma)]
            share = f"{row.share:6.1%}" if row.hessian else " " * 6
            lines.append(
                f"{row.name:24} {row.kind:12} {row.norm:9.3g} {row.lipschitz:10.3g} {' '.join(numbers)} {share}"
            )
        lines += [
            f"margins: gradient ≤ {float(self.margin_lipschitz.max()):.4g}, "
            f"Hessian ≤ {float(self.margin_hessian.max()):.4g}",
            f"loss:    gradient ≤ {self.loss_lipschitz.value:.4g}, Hessian ≤ {self.loss_hessian.value:.4g}",
            f"Theorem 1's sum: {self.theorem_one.value:.4g} ({self.theorem_one.reason})",
        ]
        return "\n".join(lines)


def bounds(model: nn.Module, input_size: tuple[int, ...]) -> Bounds:
    """Bound the gradients and Hessians of a model's logits, margins and loss on all inputs of shape `input_size`.

    >>> model = nn.Sequential(nn.Linear(1, 1), nn.Softplus(beta=4.0), nn.Linear(1, 2))
    >>> model[0].weight.data.fill_(3.0), model[2].weight.data.copy_(torch.tensor([[1.0], [-1.0]]))
    (tensor([[3.]]), tensor([[ 1.],
            [-1.]]))
    >>> found = bounds(model, (1,))  # the margin 2 s(3x + b): slope at most 6, curvature at most 2 · 9 · β/4
    >>> round(float(found.margin_lipschitz[0, 1]), 1), round(float(found.margin_hessian[0, 1]), 1)
    (6.0, 18.0)
    """
    checks.usable(model)
    checks.size(input_size=input_size)
    like = next(model.parameters(), torch.zeros(()))
    return bounds_of(trace_network(returning_logits(model, like.new_zeros(1, *input_size)), input_size), model)


def bounds_of(net: Network, model: nn.Module) -> Bounds:
    """Return the bounds of a model whose steps are known already."""
    blocks = net.blocks()
    matrix, position = net.head()
    features = blocks[position]
    logit_lipschitz, logit_hessian = _rows(matrix.norm(dim=1) * SLACK, matrix.abs().amax(1) * SLACK, features)
    margin_lipschitz, margin_hessian = _rows(net.row_distances(2.0), net.row_distances(math.inf), features)
    steepest, bent = float(margin_lipschitz.max()), float(margin_hessian.max())
    return Bounds(
        lipschitz=Bound(blocks[-1].gains.n22, _METHOD),
        logit_lipschitz=logit_lipschitz,
        logit_hessian=logit_hessian,
        margin_lipschitz=margin_lipschitz,
        margin_hessian=margin_hessian,
        loss_lipschitz=Bound(steepest, _METHOD),
        loss_hessian=Bound(calculus.cross_entropy_hessian(steepest, bent), _CURVED),
        theorem_one=theorem_one(net),
        layers=_table(model, net, blocks, _largest_margin(matrix, features, margin_hessian)),
    )


def _rows(two: Tensor, infinity: Tensor, features: Block) -> tuple[Tensor, Tensor]:
    """Lipschitz and Hessian bounds of ⟨w, features⟩ for vectors w with the given ℓ₂ and ℓ_∞ norms."""
    hessian = torch.zeros_like(two)
    for term in features.terms:
        hessian += torch.minimum(_product(two, term.k2), _product(infinity, term.k1))
    return two * features.gains.n22, hessian


def _product(norms: Tensor, bend: float) -> Tensor:
    return torch.where(norms > 0, norms * bend, 0.0) if bend else torch.zeros_like(norms)


def _largest_margin(matrix: Tensor, features: Block, hessian: Tensor) -> Block:
    """The block of the margin with the largest Hessian bound."""
    a, b = divmod(int(hessian.argmax()), len(matrix))
    row = (matrix[a] - matrix[b]) * SLACK
    largest = float(row.abs().max())
    return calculus.linear(features, calculus.Gains(float(row.norm()), largest, largest))


def _table(model: nn.Module, net: Network, blocks: list[Block], margin: Block) -> tuple[Layer, ...]:
    beta = {name: math.exp(float(log.detach().max())) for name, log in learned_logs(model, "beta").items()}
    gamma = {name: math.exp(float(log.detach().max())) for name, log in learned_logs(model, "gamma").items()}
    terms = {term.layer: term.k2 for term in margin.terms}
    rows = []
    for node, block in zip(net.nodes, blocks[1:], strict=True):
        if node.step.gains is None:  # sums and reshapes are no rows of the table
            continue
        hessian = terms.get(node.name, 0.0)
        parts = node.name.split("+")
        rows.append(
            Layer(
                name=node.name,
                kind=type(node.step).__name__,
                norm=node.step.gains.n22,
                lipschitz=block.gains.n22,
                beta=beta.get(node.name),
                gamma=next((gamma[part] for part in parts if part in gamma), None),
                hessian=hessian,
                share=_share(hessian, margin.hessian),
            )
        )
    return tuple(rows)


def _share(part: float, whole: float) -> float:
    if not part:
        return 0.0
    return part / whole if math.isfinite(whole) else float(math.isinf(part))


def _short(value: float | None, width: int) -> str:
    return " " * width if value is None else f"{value:{width}.3g}"

r"""How much can a margin fall beyond its linear part? An exact expansion around x, bounded everywhere or in a ball.

Let h_i = s_i(z_i) be the activations of a network whose other operations are affine, and M_i = ∂m/∂h_i at x. For
every displacement Δ, with Δz_i the change that it causes in z_i,

.. math:: m(x+Δ) = m(x) + ∇m(x)·Δ + Σ_i M_i · R_i, \qquad
          R_{ik} = s_i(z_{ik} + Δz_{ik}) - s_i(z_{ik}) - s_i'(z_{ik}) Δz_{ik},

because the linear parts telescope. The derivatives are those at x, the R_i those of the displaced point: nothing is
neglected. Where s is convex 0 ≤ R ≤ (b/2) Δz², so only *negative* M_ik lower the margin, and with ‖Δz_i‖ ≤ U_i ‖Δ‖ and
|Δz_ik| ≤ c_ik ‖Δ‖ (a `Reach`)

.. math:: m(x+Δ) ≥ m(x) - ‖∇m(x)‖ ‖Δ‖ - \tfrac12 K ‖Δ‖², \qquad
          K = Σ_i \max \{ Σ_k b_{ik} [M_{ik}]_- q_k : Σ_k q_k ≤ U_i², \; 0 ≤ q_k ≤ c_{ik}² \},

a knapsack that is solved by sorting. K depends on x, yet holds for every Δ; it does not exceed the data-free Hessian
bound, in which every |M_ik| is replaced by its supremum. With |M_ik| in place of [M_ik]_- it also bounds how fast the
gradient changes (`lowcurve.guarantees.explanation`).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from lowcurve.guarantees.arithmetic import FLOAT64
from lowcurve.guarantees.network import Network
from lowcurve.guarantees.operator_norm import SLACK
from lowcurve.guarantees.rounding import rounding, slope_errors
from lowcurve.guarantees.steps import Activation, Ball, Reach, spread


@dataclass(frozen=True)
class Expansion:
    """A batch of samples seen from x: values of all steps, margins z_y − z_c, and their first derivatives.

    `margins` and `gradient_norms` have shape (N, C), as have other linear functions of the logits, (N, R), in their
    place; `gradients`, (N, R, d), are off by `doubt`, (N,), at most. `slopes` holds M_i of each activation,
    (N, R, *shape), `doubts` how far it may be from the truth in ℓ₂, (N,), and `positions` where it sits in the network.
    `blur`, (N,), bounds the error of all values. `smooth` is False when a kink leaves no quadratic bound.
    """

    values: list[Tensor]
    margins: Tensor
    gradients: Tensor
    doubt: Tensor
    slopes: tuple[Tensor, ...]
    doubts: tuple[Tensor, ...]
    blur: Tensor
    positions: tuple[int, ...]
    smooth: bool

    @property
    def gradient_norms(self) -> Tensor:
        """Bounds from above: rounding in float64 is added."""
        return self.gradients.norm(dim=2) * SLACK + self.doubt.unsqueeze(1)


def expand(net: Network, x: Tensor, y: Tensor) -> Expansion:
    """Evaluate the network at x and differentiate every margin z_y − z_c with respect to x and all activations."""
    return expand_outputs(net, x, lambda logits: logits.gather(1, y.view(-1, 1)) - logits)


def expand_outputs(net: Network, x: Tensor, outputs: Callable[[Tensor], Tensor]) -> Expansion:
    """Do the same for linear functions of the logits, (N, C) -> (N, R), whose coefficients have ℓ₂ norm at most 2."""
    positions = tuple(i for i, node in enumerate(net.nodes) if isinstance(node.step, Activation))
    smooth = not any(node.step.kinked for node in net.nodes)
    with torch.enable_grad():
        x = x.detach().cpu().double().requires_grad_(smooth)
        values = net.values(x)
        found = outputs(values[-1])
        if not smooth:
            none = x.new_zeros(*found.shape, 0)
            zeros = x.new_zeros(len(x))
            return Expansion(values, found, none, zeros, (), (), zeros, positions, smooth=False)
        wanted = [x, *(values[i + 1] for i in positions)]
        rows = [
            torch.autograd.grad(row.sum(), wanted, retain_graph=True, materialize_grads=True) for row in found.unbind(1)
        ]
    gradients, *slopes = (torch.stack(parts, dim=1) for parts in zip(*rows, strict=True))
    values = [value.detach() for value in values]
    errors = rounding(net, values, net.reaches(), x.new_zeros(len(x)), FLOAT64)
    doubts = slope_errors(net, errors)
    blur = torch.stack([error.parts.flatten(1).amax(1) for error in errors]).amax(0)
    known = (values, found.detach(), gradients.flatten(2), doubts[0])
    return Expansion(*known, tuple(slopes), tuple(doubts[i + 1] for i in positions), blur, positions, smooth=True)


def curvature_within(
    net: Network, expansion: Expansion, reaches: list[Reach], ball: Ball | None = None, *, falling: bool = True
) -> Tensor:
    """Return K of each margin, (N, C), valid for displacements within `ball` (without one: for all).

    `falling` counts only what lowers a margin; without it K has |M_ik| in place of [M_ik]_-.
    """
    if not expansion.smooth:
        return torch.full_like(expansion.margins, torch.inf)
    total = torch.zeros_like(expansion.margins)
    for (slope, step, center, reach), doubt in zip(_layers(net, expansion, reaches), expansion.doubts, strict=True):
        one_sided = falling and step.constants.convex
        loss = ((-slope).clamp_min(0) if one_sided else slope.abs()) + spread(doubt, slope)
        if ball is None:
            bend = torch.full_like(center, step.constants.curvature * SLACK)
        else:
            _, bend = step.within(reach, center, ball)
        weight = (loss * bend.unsqueeze(1)).flatten(2)  # (N, C, n)
        total += knapsack(weight, reach.rows.flatten(1).square().unsqueeze(1), reach.lipschitz.square().view(-1, 1, 1))
    return torch.where(total.isnan(), torch.inf, total * SLACK)


def knapsack(weight: Tensor, caps: Tensor, budget: Tensor) -> Tensor:
    """Return max Σ_k weight_k q_k over Σ_k q_k ≤ budget, 0 ≤ q_k ≤ caps_k, along the last dimension: fill by weight.

    >>> knapsack(torch.tensor([[1.0, 3.0]]), torch.tensor([[5.0, 2.0]]), torch.tensor([[4.0]]))
    tensor([8.])
    """
    ordered, order = weight.sort(dim=-1, descending=True)
    caps = torch.minimum(caps, budget).expand_as(weight).gather(-1, order)
    before = caps.cumsum(-1) - caps
    return (ordered * torch.minimum((budget - before).clamp_min(0), caps)).sum(-1)


def _layers(
    net: Network, expansion: Expansion, reaches: list[Reach]
) -> Iterator[tuple[Tensor, Activation, Tensor, Reach]]:
    """Yield M_i, the activation, its pre-activation at x and that pre-activation's reach."""
    for slope, i in zip(expansion.slopes, expansion.positions, strict=True):
        node = net.nodes[i]
        assert isinstance(node.step, Activation)
        source = node.inputs[0]
        yield slope, node.step, expansion.values[source], reaches[source]

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
bound, in which every |M_ik| is replaced by its supremum.
"""

from collections.abc import Iterator
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

    `margins` and `gradient_norms` have shape (N, C). `slopes` holds M_i of each activation, (N, C, *shape), `doubts`
    how far it may be from the truth in ℓ₂, (N,), and `positions` where it sits in the network. `blur`, (N,), bounds the
    error of all values. `smooth` is False when a kink leaves no quadratic bound.
    """

    values: list[Tensor]
    margins: Tensor
    gradient_norms: Tensor
    slopes: tuple[Tensor, ...]
    doubts: tuple[Tensor, ...]
    blur: Tensor
    positions: tuple[int, ...]
    smooth: bool


def expand(net: Network, x: Tensor, y: Tensor) -> Expansion:
    """Evaluate the network at x and differentiate every margin z_y − z_c with respect to x and all activations.

    `gradient_norms` are bounds from above, as rounding in float64 is added to them.
    """
    positions = tuple(i for i, node in enumerate(net.nodes) if isinstance(node.step, Activation))
    smooth = not any(node.step.kinked for node in net.nodes)
    with torch.enable_grad():
        x = x.detach().cpu().double().requires_grad_(smooth)
        values = net.values(x)
        logits = values[-1]
        margins = logits.gather(1, y.view(-1, 1)) - logits
        if not smooth:
            zeros = torch.zeros_like(margins)
            return Expansion(values, margins, zeros, (), (), zeros[:, 0], positions, smooth=False)
        wanted = [x, *(values[i + 1] for i in positions)]
        rows = [
            torch.autograd.grad(margins[:, c].sum(), wanted, retain_graph=True, materialize_grads=True)
            for c in range(net.num_outputs)
        ]
    gradients, *slopes = (torch.stack(parts, dim=1) for parts in zip(*rows, strict=True))
    values = [value.detach() for value in values]
    errors = rounding(net, values, net.reaches(), x.new_zeros(len(x)), FLOAT64)
    doubts = slope_errors(net, errors)
    norms = gradients.flatten(2).norm(dim=2) * SLACK + doubts[0].unsqueeze(1)
    blur = torch.stack([error.parts.flatten(1).amax(1) for error in errors]).amax(0)
    of_slopes = tuple(doubts[i + 1] for i in positions)
    return Expansion(values, margins.detach(), norms, tuple(slopes), of_slopes, blur, positions, smooth=True)


def curvature(net: Network, expansion: Expansion, reaches: list[Reach], ball: Ball | None = None) -> Tensor:
    """Return K of each margin, (N, C), valid for displacements within `ball` (without one: for all)."""
    if not expansion.smooth:
        return torch.full_like(expansion.margins, torch.inf)
    total = torch.zeros_like(expansion.margins)
    for (slope, step, center, reach), doubt in zip(_layers(net, expansion, reaches), expansion.doubts, strict=True):
        loss = ((-slope).clamp_min(0) if step.constants.convex else slope.abs()) + spread(doubt, slope)
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

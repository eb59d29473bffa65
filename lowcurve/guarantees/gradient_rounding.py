r"""How far are the gradients that PyTorch computes in a ball from the true ones? A bound, from the logits back.

At each position of the network let v(x') be the derivative of f there, v̂ what is computed. Three numbers are carried
from step to step, for all x' in the ball: ‖v(x')‖ ≤ size, ‖v(x') − v(x)‖ ≤ drift, ‖v̂(x') − v(x')‖ ≤ error. A layer A
whose transposed product is off by γ‖|A|‖ passes on ‖A‖·error + γ‖|A|‖ (size + error). At an activation v(x) = M is
known number by number, and its slopes with it: |ŝ' − s'| ≤ 64 u a + b_k (|e_k| + w u + jump) =: ω_k, so

.. math:: error ← \max_k |s_k'| · error + ‖ω M‖ + \max_k ω_k · (drift + error), \qquad
          drift ← \max_k |s_k'| · drift + ‖b Δz M‖, \qquad size ≤ ‖M‖ + drift.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from lowcurve.guarantees.arithmetic import Arithmetic
from lowcurve.guarantees.expansion import Expansion
from lowcurve.guarantees.network import Network
from lowcurve.guarantees.operator_norm import SLACK
from lowcurve.guarantees.rounding import Error, jacobian_error, underflow
from lowcurve.guarantees.steps import Activation, Ball, Reach, Step, spread
from lowcurve.layers.traits import ULPS


@dataclass
class _Slope:
    """The three numbers of a position, (N,) each."""

    size: Tensor
    drift: Tensor
    error: Tensor


@dataclass(frozen=True)
class Executed:
    """Everything that is known of a batch: the expansion at x, the ball, and the errors of values in it."""

    at: Expansion
    ball: Ball
    reaches: list[Reach]
    errors: list[Error]
    arithmetic: Arithmetic


def gradient_errors(net: Network, known: Executed, rows: slice, scale: Tensor) -> Tensor:
    """Bound ‖∇f̂(x') − ∇f(x')‖ in the balls, (N,), for all f that are at most `scale` times an average of outputs.

    The outputs are `rows` of the expansion; their coefficients in the logits have norm at most 2.
    """
    zero = torch.zeros_like(scale)
    slopes = [_Slope(zero, zero, zero) for _ in known.errors]
    slopes[-1] = _Slope(torch.full_like(zero, 2.0), zero, zero)
    places = {position: place for place, position in enumerate(known.at.positions)}
    for index in range(len(net.nodes) - 1, -1, -1):
        node, after = net.nodes[index], slopes[index + 1]
        if isinstance(node.step, Activation):
            passed = _activation(node.step, known, node.inputs[0], places[index], rows, after)
        else:
            passed = _linear(node.step, known, node.inputs[0], after)
        for i in node.inputs:
            before = slopes[i]
            lost = underflow(node.step, known.errors[i].parts[0].numel(), after.size + after.error, known.arithmetic)
            error = before.error + passed.error + lost / scale
            slopes[i] = _Slope(before.size + passed.size, before.drift + passed.drift, error)
    error = scale * slopes[0].error * SLACK
    return torch.where(error.isfinite(), error, torch.inf)


def _linear(step: Step, known: Executed, source: int, after: _Slope) -> _Slope:
    gain = (1.0 if step.gains is None else step.gains.n22) * SLACK
    doubt = jacobian_error(step, known.errors[source], known.arithmetic) + 4 * known.arithmetic.unit * gain
    return _Slope(gain * after.size, gain * after.drift, gain * after.error + doubt * (after.size + after.error))


def _activation(step: Activation, known: Executed, source: int, place: int, rows: slice, after: _Slope) -> _Slope:
    slopes, doubt = known.at.slopes[place][:, rows].abs(), known.at.doubts[place]  # |M|, (N, R, *shape)
    error, reach, ball = known.errors[source], known.reaches[source], known.ball
    wider = Ball(ball.radius, ball.blur + error.parts.flatten(1).amax(1))
    slope, bend = step.within(reach, known.at.values[source], wider)
    move = reach.rows * spread(ball.radius, bend) + spread(ball.blur, bend)
    constants, unit = step.constants, ULPS * known.arithmetic.unit
    off = unit * constants.lipschitz * 2 + bend * (unit * constants.width + 4 * constants.jump + error.parts)
    off = torch.where(off.isfinite(), off.clamp_max(3 * constants.lipschitz), torch.inf)
    turned = (bend * move).clamp_max(2 * constants.lipschitz)
    steepest, worst, bent = (each.flatten(1).amax(1) for each in (slope, off, turned))
    size = torch.minimum(after.size, _norm(slopes, torch.ones_like(off)) + doubt + after.drift)
    drift = steepest * after.drift + _norm(slopes, turned) + bent * doubt
    added = _norm(slopes, off) + worst * (doubt + after.drift + after.error) + 4 * known.arithmetic.unit * size
    return _Slope(steepest * size, drift, steepest * after.error + added)


def _norm(slopes: Tensor, factor: Tensor) -> Tensor:
    """Return the largest ‖factor · M‖ over the outputs, (N,)."""
    return (slopes * factor.unsqueeze(1)).flatten(2).norm(dim=2).amax(1) * SLACK

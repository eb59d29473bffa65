r"""How far can the logits that PyTorch computes be from those of real arithmetic? A running bound through the steps.

Let v be the value of a position of the network in real arithmetic at some input of the ball ‖x' − x‖ ≤ r, and v̂ what is
computed there. Each step turns bounds on e = v̂ − v of its inputs (an `Error`: ‖e‖₂ and |e_k|) into those of its output:
what it makes of the inputs' errors, plus what it adds itself. A row of n products is off by at most

.. math:: γ_n Σ_k |A_k| |\hat v_k|, \qquad γ_n = \frac{n u}{1 - n u},

in whatever order they are summed, with or without fused multiply-adds (Higham 2002, §3.1); |v̂| is at most its value
at x plus how far the ball can move it plus its own error. docs/rounding.md has the proof and what it assumes.
"""

from dataclasses import dataclass
from functools import singledispatch

import torch
from torch import Tensor

from lowcurve.errors import UserError
from lowcurve.guarantees.affine import Affine
from lowcurve.guarantees.arithmetic import FLOAT64, Arithmetic
from lowcurve.guarantees.network import Network
from lowcurve.guarantees.operator_norm import SLACK
from lowcurve.guarantees.residual import Residual
from lowcurve.guarantees.steps import Activation, Add, Concatenate, MaxPool, Reach, Rearrange, SortedPairs, Step, spread
from lowcurve.layers.traits import ULPS


@dataclass(frozen=True)
class Error:
    """How far computed values can be from the true ones: ‖e‖₂ ≤ `norm`, shape (N,), and |e_k| ≤ `parts`_k."""

    norm: Tensor
    parts: Tensor


@dataclass(frozen=True)
class Input:
    """An input of a step: its `value` at the center, its `error`, and how far what is computed can be from `value`."""

    value: Tensor
    error: Error
    drift: Error

    @property
    def size(self) -> Tensor:
        """The largest size that a computed value can have."""
        return self.value.abs() + self.drift.parts


def rounding(
    net: Network, values: list[Tensor], reaches: list[Reach], radius: Tensor, arithmetic: Arithmetic
) -> list[Error]:
    """Bound the errors at each position, for all inputs within `radius` (N,) of those whose `values` are given."""
    errors = [_error(torch.zeros_like(values[0]))]
    for node in net.nodes:
        inputs = []
        for i in node.inputs:
            error = _flushed(errors[i], arithmetic)
            moved = (reach.expand(len(radius), *reach.shape[1:]) for reach in (reaches[i].lipschitz, reaches[i].rows))
            norm, parts = (torch.where(spread(radius, m) > 0, m * spread(radius, m), 0.0) for m in moved)
            inputs.append(Input(values[i], error, Error(norm + error.norm, parts + error.parts)))
        errors.append(_tightened(rounded(node.step, tuple(inputs), arithmetic)))
    return errors


def slope_errors(net: Network, errors: list[Error]) -> list[Tensor]:
    """Bound how far the derivatives ∂(z_a − z_b)/∂v at each position, computed in float64, are from the truth, in ℓ₂.

    From the logits back, with G ≥ ‖∂/∂v‖ and its error δ: a step of gain ‖J‖ whose Jacobian is computed within ω
    of J passes on G‖J‖ and δ‖J‖ + ω(G + δ). `errors` are those of the values, in float64.
    """
    like = errors[0].norm
    gains, deltas = ([torch.zeros_like(like) for _ in errors] for _ in range(2))
    gains[-1] = torch.full_like(like, 2.0)
    for position in range(len(net.nodes), 0, -1):
        node = net.nodes[position - 1]
        gain = 1.0 if node.step.gains is None else node.step.gains.n22
        doubt = jacobian_error(node.step, errors[node.inputs[0]]) + 4 * FLOAT64.unit * gain
        for i in node.inputs:
            gains[i] = gains[i] + gain * gains[position]
            deltas[i] = deltas[i] + gain * deltas[position] + doubt * (gains[position] + deltas[position])
    return [torch.where(delta.isfinite(), delta * SLACK, torch.inf) for delta in deltas]


@singledispatch
def jacobian_error(step: Step, error: Error, arithmetic: Arithmetic = FLOAT64) -> Tensor:
    """Bound ‖Ĵ − J‖₂ of one step, where its input is off by `error`."""
    raise UserError(f"no rounding bound for the derivative of {type(step).__name__}; register `jacobian_error`")


@jacobian_error.register
def _affine_jacobian(step: Affine, error: Error, arithmetic: Arithmetic = FLOAT64) -> Tensor:
    return torch.full_like(error.norm, arithmetic.gamma(step.back_terms) * step.schur)


@jacobian_error.register
def _activation_jacobian(step: Activation, error: Error, arithmetic: Arithmetic = FLOAT64) -> Tensor:
    known, unit = step.constants, ULPS * arithmetic.unit
    inside = unit * known.width + 4 * known.jump  # what the argument itself may be off by
    off = unit * known.lipschitz * 2 + known.curvature * (inside + error.parts.flatten(1).amax(1))
    return torch.where(off.isfinite(), off.clamp_max(3 * known.lipschitz), torch.inf)


@jacobian_error.register(MaxPool)
@jacobian_error.register(SortedPairs)
@jacobian_error.register(Add)
@jacobian_error.register(Concatenate)
@jacobian_error.register(Rearrange)
@jacobian_error.register(Residual)
def _exact_jacobian(step: Step, error: Error, arithmetic: Arithmetic = FLOAT64) -> Tensor:
    """Zeros and ones, which are exact."""
    return torch.zeros_like(error.norm)


def underflow(step: Step, inputs: int, size: Tensor, arithmetic: Arithmetic) -> Tensor:
    """Bound what derivatives lose below `tiny`; nothing is known where one may pass the largest number."""
    terms, largest = 1, 2.0
    if isinstance(step, Affine):
        terms, largest = step.back_terms, 1 + step.schur + step.inside
    lost = 4 * arithmetic.tiny * terms * inputs**0.5 * (size + largest) * largest
    return torch.where(size * largest < arithmetic.largest / 8, lost, torch.inf)


@singledispatch
def rounded(step: Step, inputs: tuple[Input, ...], arithmetic: Arithmetic) -> Error:
    """Return the error of a step's output."""
    raise UserError(f"no rounding bound is known for {type(step).__name__}; register `rounded` for it")


@rounded.register
def _affine(step: Affine, inputs: tuple[Input, ...], arithmetic: Arithmetic) -> Error:
    """γ_n (|A| |v̂| + |c|), by the parts or by ‖|A|‖₂ ‖v̂ − v‖₂, beside |A| e."""
    (at,) = inputs
    gamma = arithmetic.gamma(step.terms)
    fixed = step.absolute(at.value.abs()) + step.offset
    sizes = fixed + step.parts(at.drift.norm, at.drift.parts)
    largest = at.size.flatten(1).amax(1)
    inside = step.inside * (1 + largest)
    lost = 4 * arithmetic.tiny * step.terms * (1 + largest + inside)  # operations may flush results and weights to 0
    floor = lost * step.stretch
    added = gamma * sizes + spread(floor, sizes)
    norm = gamma * (_norm(fixed) + step.schur * at.drift.norm) + floor * sizes[0].numel() ** 0.5
    norm = step.gains.n22 * at.error.norm + torch.fmin(norm, _norm(added))
    peak = torch.maximum(sizes.flatten(1).amax(1), inside)
    return _bounded(Error(norm, step.parts(at.error.norm, at.error.parts) + added), peak, arithmetic)


@rounded.register
def _activation(step: Activation, inputs: tuple[Input, ...], arithmetic: Arithmetic) -> Error:
    """A few units in the last place of |x| and of the activation's own width."""
    (at,) = inputs
    known = step.constants
    unit = ULPS * arithmetic.unit * known.lipschitz
    fixed = unit * (at.value.abs() + known.width) + known.jump + 8 * arithmetic.tiny * (1 + known.width)
    added = fixed + unit * at.drift.parts
    norm = torch.fmin(_norm(added), _norm(fixed) + unit * at.drift.norm)
    steep = known.lipschitz
    peak = max(1.0, steep) * at.size
    return _bounded(Error(steep * at.error.norm + norm, steep * at.error.parts + added), peak, arithmetic)


@rounded.register
def _max_pool(step: MaxPool, inputs: tuple[Input, ...], arithmetic: Arithmetic) -> Error:
    """A maximum is exact."""
    (at,) = inputs
    return Error(step.gains.n22 * at.error.norm, step.pool(at.error.parts))


@rounded.register
def _sorted_pairs(step: SortedPairs, inputs: tuple[Input, ...], arithmetic: Arithmetic) -> Error:
    """So are maximum and minimum of two."""
    (at,) = inputs
    return Error(at.error.norm, step.largest(at.error.parts))


@rounded.register
def _add(step: Add, inputs: tuple[Input, ...], arithmetic: Arithmetic) -> Error:
    """One rounding."""
    first, second = inputs
    sizes = first.size + second.size
    added = arithmetic.unit * sizes + 2 * arithmetic.tiny
    norm = first.error.norm + second.error.norm + _norm(added)
    return _bounded(Error(norm, first.error.parts + second.error.parts + added), sizes, arithmetic)


@rounded.register
def _concatenate(step: Concatenate, inputs: tuple[Input, ...], arithmetic: Arithmetic) -> Error:
    norm = torch.stack([at.error.norm for at in inputs]).norm(dim=0)
    return Error(norm, torch.cat([at.error.parts for at in inputs], step.dim))


@rounded.register
def _rearrange(step: Rearrange, inputs: tuple[Input, ...], arithmetic: Arithmetic) -> Error:
    (at,) = inputs
    return Error(at.error.norm, step.arranged(at.error.parts))


@rounded.register
def _residual(step: Residual, inputs: tuple[Input, ...], arithmetic: Arithmetic) -> Error:
    """The exact block passes the input's error on by its constant; beside it, what its branch rounds from there on.

    That is the branch's error at the *computed* input, in which it takes no part of the error before.
    """
    at, after = inputs
    own, sizes = _branch_error(step.branch.steps, at, arithmetic), at.size + after.size
    passed = step.gains.n22 * at.error.norm
    added = arithmetic.unit * sizes + 2 * arithmetic.tiny
    norm = torch.fmin(passed + own.norm, at.error.norm + after.error.norm) + _norm(added)
    parts = torch.fmin(spread(passed, sizes) + own.parts, at.error.parts + after.error.parts) + added
    return _bounded(Error(norm, parts), sizes, arithmetic)


def _branch_error(steps: tuple[Step, ...], at: Input, arithmetic: Arithmetic) -> Error:
    """Bound what steps one after the other round, where the first one's input is taken as exact wherever it drifts."""
    error = _error(torch.zeros_like(at.value))
    value, drift = at.value, at.drift
    for step in steps:
        error = _tightened(rounded(step, (Input(value, _flushed(error, arithmetic), drift),), arithmetic))
        moved = step.reach((Reach(drift.norm, drift.parts),), (value,), None)  # linear in what moves
        value = step.evaluate(value)
        drift = Error(moved.lipschitz + error.norm, moved.rows + error.parts)
    return error


def _error(parts: Tensor) -> Error:
    return Error(_norm(parts), parts)


def _norm(parts: Tensor) -> Tensor:
    return parts.flatten(1).norm(dim=1)


def _tightened(error: Error) -> Error:
    """Let the norm bound the parts and the parts the norm; 0 · ∞ is not known."""
    norm, parts = (torch.where(bound.isnan(), torch.inf, bound * SLACK) for bound in (error.norm, error.parts))
    return Error(torch.minimum(norm, _norm(parts) * SLACK), torch.minimum(parts, spread(norm, parts)))


def _flushed(error: Error, arithmetic: Arithmetic) -> Error:
    """Add what is lost where an operand below `tiny` counts as 0."""
    return Error(error.norm + arithmetic.tiny * error.parts[0].numel() ** 0.5, error.parts + arithmetic.tiny)


def _bounded(error: Error, sizes: Tensor, arithmetic: Arithmetic) -> Error:
    """Nothing is known where a sum may overflow."""
    over = ~(sizes.reshape(len(sizes), -1).amax(1) < arithmetic.largest / 8)
    return Error(
        error.norm.masked_fill(over, torch.inf), torch.where(spread(over, error.parts), torch.inf, error.parts)
    )

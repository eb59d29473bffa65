"""How do Lipschitz and Hessian bounds combine? The rules for composition, sum, multiple and concatenation.

For F: ℝᵈ → ℝⁿ with Jacobian DF and second derivative D²F, all suprema over the whole space:

    n22 = sup ‖DF‖₂→₂,   n11 = sup ‖DF‖₁→₁ (largest column ℓ₁ norm),   n12 = sup ‖DF‖₁→₂ (largest column ℓ₂ norm),
    K₂ = sup_{‖v‖₂=1} ‖D²F[v, v]‖₂,   K₁ = the same with ‖·‖₁ outside.

K₁ and K₂ are kept as one term per curved layer, because what follows a layer may pass its ℓ₁ norm on far better
than its ℓ₂ norm: a final row w costs max|w_k| instead of ‖w‖₂. For a scalar F both are the Hessian's norm.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Gains:
    """Operator norms of a linear map, or bounds on those of a Jacobian: 2→2, 1→1 and 1→2."""

    n22: float
    n11: float
    n12: float


@dataclass(frozen=True)
class Bend:
    """What one curved layer contributes to K₁ and K₂."""

    layer: str
    k1: float
    k2: float


@dataclass(frozen=True)
class Block:
    """A map from the network's input to somewhere inside: bounds on its Jacobian and, by layer, on its curvature."""

    gains: Gains
    terms: tuple[Bend, ...] = ()

    @property
    def hessian(self) -> float:
        """K₂: a bound on ‖D²F[v, v]‖₂ over unit v; the Hessian's norm when F is scalar."""
        return math.fsum(term.k2 for term in self.terms)


IDENTITY = Block(Gains(1.0, 1.0, 1.0))


def linear(block: Block, gains: Gains) -> Block:
    """Follow F by a linear map W, the chain rule for D²(WF) = W D²F.

    >>> linear(Block(Gains(1, 1, 1), (Bend("a", 2.0, 2.0),)), Gains(3.0, 0.5, 0.5)).hessian
    1.0
    """
    f = block.gains
    composed = Gains(
        gains.n22 * f.n22,
        gains.n11 * f.n11,
        min(gains.n12 * f.n11, gains.n22 * f.n12),
    )
    terms = (
        replace(t, k1=_times(gains.n11, t.k1), k2=min(_times(gains.n22, t.k2), _times(gains.n12, t.k1)))
        for t in block.terms
    )
    return Block(composed, tuple(terms))


def curved(block: Block, layer: str, gains: Gains, curvature: float) -> Block:
    """Follow F by an elementwise activation with |s'| ≤ a (in `gains`) and |s''| ≤ `curvature`.

    Σ_k |s''(F_k)| (DF_k·v)² ≤ b ‖DF v‖₂², hence both K₁ and K₂ gain b n22². A layer that is used twice has one term.
    """
    bend = _times(curvature, block.gains.n22**2)
    return bent(linear(block, gains), [Bend(layer, bend, bend)])


def added(first: Block, second: Block) -> Block:
    """F + G: norms add and terms are united (a layer upstream of both branches is counted once, with both shares)."""
    f, g = first.gains, second.gains
    total = Gains(f.n22 + g.n22, f.n11 + g.n11, f.n12 + g.n12)
    return bent(Block(total, first.terms), second.terms)


def concatenated(first: Block, second: Block) -> Block:
    """(F, G) stacked: ℓ₂ outputs combine by hypot, ℓ₁ outputs add."""
    f, g = first.gains, second.gains
    total = Gains(math.hypot(f.n22, g.n22), f.n11 + g.n11, math.hypot(f.n12, g.n12))
    return bent(Block(total, first.terms), second.terms)


def scaled(block: Block, factor: float) -> Block:
    """Return the constants of c·F."""
    size = abs(factor)
    return linear(block, Gains(size, size, size))


def cross_entropy_hessian(pair_lipschitz: float, margin_hessian: float) -> float:
    """Bound ‖∇²ₓ(softmax cross-entropy)‖₂ by L²/4 + K.

    L = max over pairs of classes of Lip(z_c − z_c'), K = max over c ≠ y of the Hessian bound of z_c − z_y: the first
    term is the variance of a margin under the softmax (at most a quarter of its range squared), the second an average.
    """
    return pair_lipschitz**2 / 4 + margin_hessian


def bent(block: Block, terms: Iterable[Bend]) -> Block:
    """Add `terms` to a block, joining those of the same layer."""
    by_layer = {term.layer: term for term in block.terms}
    for term in terms:
        known = by_layer.get(term.layer, Bend(term.layer, 0.0, 0.0))
        by_layer[term.layer] = Bend(term.layer, known.k1 + term.k1, known.k2 + term.k2)
    return Block(block.gains, tuple(by_layer.values()))


def _times(gain: float, bend: float) -> float:
    """Multiply, with 0·∞ = 0: a layer that nothing reads does not bend the output."""
    return 0.0 if gain == 0 or bend == 0 else gain * bend

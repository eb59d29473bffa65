"""Produce every number of docs/what-is-true.md: python docs/what_is_true.py [--write] puts them into the page.

The page holds values between markers, <!--name-->value<!--/-->; this script recomputes them in float64, seeds fixed.
`--check` fails when a number on the page is not what the script finds.
"""

import argparse
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from lowcurve.guarantees.theorem import chain_curvature

PAGE = Path(__file__).with_name("what-is-true.md")
DOUBLE = torch.float64


def softplus(x: Tensor, beta: float = 1.0) -> Tensor:
    return torch.logaddexp(beta * x, torch.zeros_like(x)) / beta


def normalized_curvature(f: Callable[[Tensor], Tensor], x: Tensor) -> float:
    """‖∇²f‖₂ / ‖∇f‖₂ at x, no ε."""
    gradient, hessian = torch.func.grad(f)(x), torch.func.hessian(f)(x)
    norm = torch.linalg.matrix_norm(hessian.reshape(x.numel(), x.numel()), ord=2)
    return float(norm / gradient.norm())


def lemma() -> dict[str, str]:
    """The one-dimensional lemma: product to i (printed) and to i − 1 (true), 2,000 random compositions."""
    rng = torch.Generator().manual_seed(0)
    printed = true = 0
    for _ in range(2000):
        depth = int(torch.randint(1, 5, (1,), generator=rng))
        first, second, value, d1, d2 = [], [], float(torch.randn((), generator=rng, dtype=DOUBLE)), 1.0, 0.0
        for beta, w in zip(*(torch.rand(2, depth, generator=rng, dtype=DOUBLE) * 4 + 0.1), strict=True):
            z = float(w) * value
            sigma = 1 / (1 + math.exp(-float(beta) * z))
            a, b = float(w) * sigma, float(w) ** 2 * float(beta) * sigma * (1 - sigma)
            d1, d2 = a * d1, b * d1**2 + a * d2  # chain rule, forwards
            first.append(a)
            second.append(b)
            value = float(softplus(torch.tensor(z, dtype=DOUBLE), float(beta)))
        truth = abs(d2 / d1)
        true += truth > chain_curvature(first, second) * (1 + 1e-9)
        wrong = sum(
            abs(b / a) * math.prod(map(abs, first[: i + 1])) for i, (a, b) in enumerate(zip(first, second, strict=True))
        )
        printed += truth > wrong * (1 + 1e-9)
    return {"lemma_printed": f"{printed:,}", "lemma_true": f"{true}"}


def theorem() -> dict[str, str]:
    """The counterexample s(x) + s(−x), and random nets at points where their gradient is small."""

    def f(x: Tensor) -> Tensor:
        return (softplus(x) + softplus(-x)).sum()

    values = [normalized_curvature(f, torch.tensor([x], dtype=DOUBLE)) for x in (1e-1, 1e-2, 1e-4, 1e-8)]
    hessian = float(torch.func.hessian(f)(torch.zeros(1, dtype=DOUBLE)))
    violated = int((_largest_ratios(range(60)) > 1).sum())
    return {
        "counterexample": ", ".join(f"{v:.3g}" for v in values),
        "counterexample_sum": f"{2 * math.sqrt(2):.3f}",  # n β ‖W‖ with n = 2, β = 1, W = (1, −1)ᵀ
        "counterexample_hessian": f"{hessian:.2f}",
        "nets_violated": f"{violated} of 60",
    }


def _largest_ratios(seeds: Sequence[int]) -> Tensor:
    """C_f / (global sum of Theorem 1) of random 2-8-8-1 softplus nets, each where its gradient is smallest."""
    nets, starts = zip(*(_random_net(seed) for seed in seeds), strict=True)
    weights = tuple(map(torch.stack, zip(*nets, strict=True)))  # one more dimension: the nets side by side
    start = torch.stack(starts)

    def f(x: Tensor, first: Tensor, second: Tensor, last: Tensor, *biases: Tensor) -> Tensor:
        h = softplus(first @ x + biases[0])
        return (last @ softplus(second @ h + biases[1])).squeeze()

    gradient, hessian = torch.func.vmap(torch.func.grad(f)), torch.func.vmap(torch.func.hessian(f))
    slopes = torch.func.vmap(torch.func.vmap(torch.func.grad(f), (0, *[None] * 5)))(start, *weights).norm(dim=2)
    nearest = x = start[torch.arange(len(start)), slopes.argmin(1)]
    for _ in range(10):  # Newton's method on ∇f = 0, damped
        step = torch.linalg.lstsq(hessian(x, *weights), gradient(x, *weights)[..., None]).solution[..., 0]
        x = x - step / step.norm(dim=1, keepdim=True).clamp_min(1)
    norms = [torch.linalg.matrix_norm(w, ord=2) for w in weights[:2]]
    total = 8 * norms[0] + 8 * norms[0] * norms[1]  # n_i β_i Π_{j ≤ i} ‖W_j‖
    ratios = [
        torch.linalg.matrix_norm(hessian(at, *weights), ord=2) / gradient(at, *weights).norm(dim=1) / total
        for at in (x, nearest)
    ]
    return torch.stack(ratios).nan_to_num(nan=-math.inf).amax(0)


def _random_net(seed: int) -> tuple[list[Tensor], Tensor]:
    """Weights and biases of a net, and points to start from."""
    rng = torch.Generator().manual_seed(seed)
    weights = [torch.randn(o, i, generator=rng, dtype=DOUBLE) / math.sqrt(i) for i, o in ((2, 8), (8, 8), (8, 1))]
    biases = [0.5 * torch.randn(8, generator=rng, dtype=DOUBLE) for _ in range(2)]
    return [*weights, *biases], 6 * torch.randn(40, 2, generator=rng, dtype=DOUBLE)


def essential() -> dict[str, str]:
    """‖unfold I(M1, M2, M3)‖ ≤ ‖M1‖ ‖M2ᵀM3‖ s2 on 4,000 random triples, and a family without any bound."""
    rng = torch.Generator().manual_seed(0)
    violated, worst = 0, 0.0
    for _ in range(4000):
        d, s1, s2, s3 = (int(v) for v in torch.randint(1, 5, (4,), generator=rng))
        m1, m2, m3 = (torch.randn(d, s, generator=rng, dtype=DOUBLE) for s in (s1, s2, s3))
        unfolded = torch.einsum("ia,ib,ic->abc", m1, m2, m3).reshape(s1 * s2, s3)
        bound = _norm(m1) * _norm(m2.T @ m3) * s2
        ratio = _norm(unfolded) / bound
        violated, worst = violated + (ratio > 1 + 1e-9), max(worst, ratio)
    eps = 1e-6
    m2, m3 = torch.tensor([[1.0], [1.0]], dtype=DOUBLE), torch.tensor([[1.0], [-1.0 + eps]], dtype=DOUBLE)
    unfolded = torch.einsum("ia,ib,ic->abc", torch.eye(2, dtype=DOUBLE), m2, m3).reshape(2, 1)
    return {
        "essential_violated": f"{violated} of 4,000",
        "essential_worst": f"{worst:.0f}",
        "essential_family": f"{_norm(unfolded) / _norm(m2.T @ m3):.2g}",
    }


def loss() -> dict[str, str]:
    """Loss curvature with linear logits, and its growth with the logits' scale."""
    y = torch.tensor(0)

    def cross_entropy(z: Tensor) -> Tensor:
        return torch.logsumexp(z, 0) - z[y]

    def peaked(x: Tensor) -> Tensor:  # z = (0, x, −x): linear logits
        return cross_entropy(torch.cat([torch.zeros(1, dtype=DOUBLE), x, -x]))

    def binary(x: Tensor, scale: float) -> Tensor:
        return cross_entropy(scale * torch.cat([torch.zeros(1, dtype=DOUBLE), x]))

    zero = torch.zeros(1, dtype=DOUBLE)
    near = [normalized_curvature(peaked, torch.tensor([x], dtype=DOUBLE)) for x in (1e-1, 1e-3, 1e-6)]
    scales = [normalized_curvature(lambda x, s=s: binary(x, s), zero) for s in (1, 3, 10)]
    return {"loss_linear": ", ".join(f"{v:.3g}" for v in near), "loss_scale": ", ".join(f"{v:.3g}" for v in scales)}


def propositions() -> dict[str, str]:
    """e^{δx} attains the sharp forms; eqn (1) as printed and its corrections at δ = 1, r = 2."""
    delta, r = 1.0, 2.0
    a = delta * r
    relative = (math.exp(a) - 1 - a) / delta
    threshold = _root(lambda t: (math.exp(t) - 1) ** 2 - t * math.exp(t), 0.5, 2.0)
    return {
        "eqn1_truth": f"{relative:.2f}",
        "eqn1_printed": f"{0.5 * delta * r:.1f}",
        "eqn1_square": f"{0.5 * delta * r**2:.1f}",
        "eqn1_correct": f"{0.5 * delta * r**2 * math.exp(a):.1f}",
        "squared_fails": f"{threshold:.3f}",
        "main_text": f"{a * math.exp(a):.1f} ≥ {math.exp(a) - 1:.1f}",
    }


def _root(f: Callable[[float], float], low: float, high: float) -> float:
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if f(low) * f(middle) > 0 else (low, middle)
    return low


def _norm(matrix: Tensor) -> float:
    return float(torch.linalg.matrix_norm(matrix, ord=2))


def numbers() -> dict[str, str]:
    """Every number of the page by its name."""
    found: dict[str, str] = {}
    for part in (lemma, theorem, essential, loss, propositions):
        found |= part()
    return found


def fill(page: str, values: dict[str, str]) -> str:
    """Put each value between its markers; a marker without a value, or a value without a marker, is an error."""
    used = set(re.findall(r"<!--(\w+)-->", page))
    if used != set(values):
        raise SystemExit(f"markers and numbers differ: {sorted(used ^ set(values))}")
    return re.sub(r"<!--(\w+)-->.*?<!--/-->", lambda m: f"<!--{m[1]}-->{values[m[1]]}<!--/-->", page)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="put the numbers into the page")
    parser.add_argument("--check", action="store_true", help="fail if the page has other numbers")
    options = parser.parse_args()
    values, page = numbers(), PAGE.read_text("utf-8")
    filled = fill(page, values)
    if options.write:
        PAGE.write_text(filled, "utf-8")
    if options.check and filled != page:
        raise SystemExit("the page's numbers are not those of the script; run it with --write")
    for name, value in values.items():
        print(f"{name:24} {value}")


if __name__ == "__main__":
    main()

"""What the paper claims, as data, and what the numbers say of it: holds, does not hold, or not measured.

A claim compares a quantity with a threshold. The quantity is a cell, a ratio of two cells or a difference of two
cells of one table; a cell is (row, column). The same claim is judged on our numbers and on the paper's own.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Cell = tuple[str, str]  # (row key, column key)
Lookup = Callable[[Cell], float | None]
Verdict = Literal["holds", "does not hold", "not measured"]


@dataclass(frozen=True)
class Claim:
    """`quantity(left, right) comparison threshold`; `source` is who says so: the paper, or this project's target."""

    text: str
    left: Cell
    right: Cell | None
    quantity: Literal["value", "ratio", "difference"]
    comparison: Literal["<=", ">="]
    threshold: float
    source: Literal["paper", "project"] = "paper"

    def formula(self) -> str:
        """Spell the comparison, e.g. `curvature[lcnn] / curvature[standard] <= 0.5`."""
        sign = {"ratio": " / ", "difference": " − ", "value": ""}[self.quantity]
        right = f"{sign}{self.right[1]}[{self.right[0]}]" if self.right else ""
        return f"{self.left[1]}[{self.left[0]}]{right} {self.comparison} {self.threshold:g}"

    def evaluate(self, lookup: Lookup) -> float | None:
        """Return the quantity, or None where a cell is missing or the quantity has no value."""
        left = lookup(self.left)
        right = lookup(self.right) if self.right else 0.0
        if left is None or right is None:
            return None
        if self.quantity == "ratio":
            return left / right if right else None
        return left - right

    def judge(self, value: float | None) -> Verdict:
        """Compare a quantity with the threshold.

        >>> claim = ratio("halves curvature", "curvature", "lcnn", "standard", "<=", 0.5)
        >>> claim.formula(), claim.judge(0.26), claim.judge(None)
        ('curvature[lcnn] / curvature[standard] <= 0.5', 'holds', 'not measured')
        """
        if value is None or math.isnan(value):
            return "not measured"
        holds = value <= self.threshold if self.comparison == "<=" else value >= self.threshold
        return "holds" if holds else "does not hold"


def ratio(
    text: str,
    column: str,
    row: str,
    over: str,
    comparison: Literal["<=", ">="],
    threshold: float,
    **more: Any,
) -> Claim:
    """Claim about one column's ratio between two rows."""
    return Claim(text, (row, column), (over, column), "ratio", comparison, threshold, **more)


def difference(
    text: str,
    column: str,
    row: str,
    minus: str,
    comparison: Literal["<=", ">="],
    threshold: float,
    **more: Any,
) -> Claim:
    """Claim about one column's difference between two rows."""
    return Claim(text, (row, column), (minus, column), "difference", comparison, threshold, **more)


def verdicts(
    claims: Sequence[Claim], ours: Lookup, paper: Lookup, by_seed: Mapping[int, Lookup]
) -> list[dict[str, Any]]:
    """Judge each claim on the means, on each seed alone, and on the paper's numbers."""
    judged = []
    for claim in claims:
        value, printed = claim.evaluate(ours), claim.evaluate(paper)
        seeds = {seed: claim.evaluate(lookup) for seed, lookup in by_seed.items()}
        judged.append(
            {
                "text": claim.text,
                "formula": claim.formula(),
                "source": claim.source,
                "threshold": claim.threshold,
                "ours": value,
                "verdict": claim.judge(value),
                "seeds": {str(seed): found for seed, found in seeds.items() if found is not None},
                "seeds_that_agree": sum(
                    claim.judge(found) == claim.judge(value) for found in seeds.values() if found is not None
                ),
                "paper": printed,
                "paper_verdict": claim.judge(printed),
            }
        )
    return judged

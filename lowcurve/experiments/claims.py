"""What the paper claims, as rows of a table, and what the numbers say of it: holds, does not, or cannot tell.

A claim is a sentence and a formula: a cell, a ratio of two cells or a difference of two cells of one table, compared
with a threshold. A cell is `column[row]`. The same claim is judged on our numbers and on the paper's own. Ours are
known to an interval over samples and seeds: where it lies on both sides of the threshold, or where there is none (one
seed, and no samples kept), the numbers cannot tell.
"""

import math
import re
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy

from lowcurve.errors import UserError

if TYPE_CHECKING:
    from lowcurve.evaluation.schema import Verdict

Cell = tuple[str, str]  # (row key, column key)
Lookup = Callable[[Cell], float | None]
OURS: Literal["project"] = "project"  # a target of this project, not a claim of the paper

_CELL = r"(\w[^][]*)\[([^][]+)\]"
_FORMULA = re.compile(rf"{_CELL}(?: ([/−-]) {_CELL})? (<=|>=) (-?\d+(?:\.\d+)?(?:e-?\d+)?)")


@dataclass(frozen=True)
class Claim:
    """A sentence, the formula that tests it, and who says so: the paper, or this project's target.

    >>> claim = Claim("halves curvature", "curvature[lcnn] / curvature[standard] <= 0.5")
    >>> claim.cells, claim.judge(0.26), claim.judge(None)
    ([('lcnn', 'curvature'), ('standard', 'curvature')], 'holds', 'not measured')
    """

    text: str
    formula: str
    source: Literal["paper", "project"] = "paper"

    def __post_init__(self) -> None:
        if not _FORMULA.fullmatch(self.formula):
            raise UserError(f"expected a claim such as `curvature[lcnn] / curvature[relu] <= 0.5`, got {self.formula}")

    @cached_property
    def _parts(self) -> tuple[Any, ...]:
        found = _FORMULA.fullmatch(self.formula)
        return found.groups() if found else ()

    @property
    def cells(self) -> list[Cell]:
        """The one or two cells of the formula."""
        column, row, sign, other_column, other_row, *_ = self._parts
        return [(row, column), *([(other_row, other_column)] if sign else [])]

    @property
    def threshold(self) -> float:
        """What the quantity is compared with."""
        return float(self._parts[-1])

    def value(self, lookup: Lookup) -> float | None:
        """Return the quantity, or None where a cell is missing or the quantity has no value."""
        left, *more = (lookup(cell) for cell in self.cells)
        if left is None or not more:
            return left
        right = more[0]
        return None if right is None or (self._divides and not right) else self._join(left, right)

    def values(self, draws: Mapping[Cell, numpy.ndarray]) -> numpy.ndarray | None:
        """Return the quantity in each of many draws of its cells, None where a cell has none."""
        found = [draws.get(cell) for cell in self.cells]
        if any(cell is None for cell in found):
            return None
        left, *more = found
        with numpy.errstate(divide="ignore", invalid="ignore"):
            return self._join(left, more[0]) if more else left

    @property
    def _divides(self) -> bool:
        return self._parts[2] == "/"

    def _join(self, left: Any, right: Any) -> Any:
        return left / right if self._divides else left - right

    def judge(self, value: float | None) -> "Verdict":
        """Compare a quantity with the threshold."""
        if value is None or math.isnan(value):
            return "not measured"
        holds = value <= self.threshold if self._parts[-2] == "<=" else value >= self.threshold
        return "holds" if holds else "does not hold"

    def judge_interval(self, value: float | None, low: float | None, high: float | None) -> "Verdict":
        """Compare an interval around a quantity with the threshold.

        >>> claim = Claim("halves curvature", "curvature[lcnn] / curvature[standard] <= 0.5")
        >>> [claim.judge_interval(0.4, *ends) for ends in ((0.3, 0.5), (0.3, 0.6), (None, None))]
        ['holds', 'cannot tell', 'cannot tell']
        """
        if (rough := self.judge(value)) == "not measured":
            return rough
        if low is None or high is None or self.judge(low) != self.judge(high):
            return "cannot tell"
        return self.judge(low)


def middle(draws: numpy.ndarray | None) -> tuple[float | None, float | None]:
    """Return the ends of the middle 95 % of the draws, None where there are no draws or a draw has no value."""
    if draws is None or not numpy.isfinite(draws).all():
        return None, None
    low, high = numpy.quantile(draws, [0.025, 0.975])
    return float(low), float(high)


def around(measured: float, draws: numpy.ndarray | None) -> tuple[float | None, float | None]:
    """Return the middle of the draws, made wide enough to hold what was measured.

    Drawn anew, the size of a difference near 0 is nearly always larger.

    >>> around(0.1, numpy.array([0.2, 0.2, 0.2]))
    (0.1, 0.2)
    """
    low, high = middle(draws)
    return (None, None) if low is None or high is None else (min(low, measured), max(high, measured))


def verdicts(
    claims: Sequence[Claim],
    ours: Mapping[Cell, Mapping[int, float]],
    paper: Lookup,
    draws: Callable[[Cell, Collection[int]], numpy.ndarray | None],
) -> list[dict[str, Any]]:
    """Judge each claim by its interval in the `draws`, on each seed alone, and on the paper's numbers.

    `ours` has the number of each seed. Two cells are compared on the seeds that both have, where there are any: a run
    less of one of them must not look like a difference between them.
    """
    judged = []
    for claim in claims:
        found = [ours.get(cell, {}) for cell in claim.cells]
        shared = sorted(set(found[0]).intersection(*found))
        compared = shared or sorted({seed for one in found for seed in one})
        value, printed = claim.value(_mean_of(ours, compared)), claim.value(paper)
        seeds = {seed: one for seed in shared if (one := claim.value(_mean_of(ours, [seed]))) is not None}
        known = {cell: drawn for cell in claim.cells if (drawn := draws(cell, compared)) is not None}
        low, high = around(value, claim.values(known)) if value is not None else (None, None)
        judged.append(
            {
                "text": claim.text,
                "formula": claim.formula,
                "source": claim.source,
                "threshold": claim.threshold,
                "ours": value,
                "low": low,
                "high": high,
                "verdict": claim.judge_interval(value, low, high),
                "seeds": {str(seed): one for seed, one in seeds.items()},
                "seeds_that_agree": [claim.judge(one) for one in seeds.values()].count(claim.judge(value)),
                "paper": printed,
                "paper_verdict": claim.judge(printed),
            }
        )
    return judged


def _mean_of(ours: Mapping[Cell, Mapping[int, float]], seeds: Collection[int]) -> Lookup:
    """Return the function from a cell to its mean over these seeds, None where it has none of them."""

    def mean(cell: Cell) -> float | None:
        numbers = [number for seed, number in ours.get(cell, {}).items() if seed in seeds]
        return statistics.fmean(numbers) if numbers else None

    return mean

"""What came out? Robust accuracy per attack and radius with 95 % intervals, from one row per attacked sample."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

CLEAN, WORST = "clean", "worst"


@dataclass(frozen=True)
class AttackedSample:
    """One sample under one attack at one radius.

    `clean` is the class predicted at the sample, `predicted` at the example found, at distance `distance`.
    """

    sample: int
    label: int
    clean: int
    attack: str
    steps: int
    eps: float
    success: bool
    predicted: int
    distance: float


@dataclass(frozen=True)
class RobustAccuracy:
    """The accuracy left by one attack at one radius, with its 95 % interval (Wilson), over `samples` samples."""

    attack: str
    eps: float
    accuracy: float
    low: float
    high: float
    samples: int


def robust_accuracy(attack: str, eps: float, survived: Iterable[bool]) -> RobustAccuracy:
    """Count survivors.

    >>> robust_accuracy("pgd", 0.1, [True] * 8 + [False] * 2)
    RobustAccuracy(attack='pgd', eps=0.1, accuracy=0.8, low=0.490..., high=0.943..., samples=10)
    """
    from scipy.stats import binomtest

    flags = list(survived)
    test = binomtest(sum(flags), len(flags))
    interval = test.proportion_ci(method="wilson")
    return RobustAccuracy(attack, eps, sum(flags) / len(flags), float(interval.low), float(interval.high), len(flags))


@dataclass(frozen=True)
class Evaluation:
    """The rows of an evaluation in `norm`, and warnings about what its figures can be trusted for."""

    rows: tuple[AttackedSample, ...]
    norm: float
    flags: tuple[str, ...] = ()

    @cached_property
    def cells(self) -> tuple[RobustAccuracy, ...]:
        """Clean accuracy first (radius 0), then each attack by radius, then the worst of several attacks."""
        return tuple(robust_accuracy(*place, survived.values()) for place, survived in self.survivors.items())

    @cached_property
    def survivors(self) -> dict[tuple[str, float], dict[int, bool]]:
        """By attack and radius, in the order of `cells`: which samples are still classified as labeled."""
        clean = {row.sample: row.clean == row.label for row in self.rows}
        single: dict[tuple[str, float], dict[int, bool]] = defaultdict(dict)
        together: dict[tuple[str, float], dict[int, bool]] = defaultdict(dict)
        for row in self.rows:
            single[row.attack, row.eps][row.sample] = not row.success
            worst = together[WORST, row.eps]
            worst[row.sample] = worst.get(row.sample, True) and not row.success
        return {(CLEAN, 0.0): clean, **single, **(together if len(self.attacks) > 1 else {})}

    @cached_property
    def attacks(self) -> tuple[str, ...]:
        """The attacks in the order in which they ran."""
        return tuple(dict.fromkeys(row.attack for row in self.rows))

    @cached_property
    def radii(self) -> tuple[float, ...]:
        """The radii, from small to large."""
        return tuple(sorted({row.eps for row in self.rows}))

    def cell(self, attack: str, eps: float) -> RobustAccuracy:
        """Return the cell of one attack ("clean" and "worst" too) at one radius."""
        return next(cell for cell in self.cells if (cell.attack, cell.eps) == (attack, eps))

    def accuracy(self, attack: str, eps: float) -> float:
        """Return the accuracy that one attack leaves at one radius."""
        return self.cell(attack, eps).accuracy

    def curve(self, attack: str) -> list[RobustAccuracy]:
        """Return clean accuracy and then the attack's cells by growing radius."""
        return [self.cell(CLEAN, 0.0), *(self.cell(attack, eps) for eps in self.radii)]

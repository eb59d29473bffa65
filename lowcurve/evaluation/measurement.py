"""What is a measurement? A name, a function of a subject and settings, and how a budget becomes those settings."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lowcurve.evaluation.subject import Subject

Settings = dict[str, Any]
Values = dict[str, Any]


@dataclass(frozen=True)
class Samples:
    """What measurements may cost: how many test samples each kind uses, and how hard the attacks try."""

    geometry: int
    stability: int
    pgd: int
    pgd_steps: int
    strong: int
    apgd_steps: int
    square_queries: int


@dataclass(frozen=True)
class Task:
    """A measurement to take: the same name and settings are the same number."""

    name: str
    measure: Callable[[Subject, Settings], Values]
    settings: Settings


@dataclass(frozen=True)
class Measurement:
    """`measure` returns numbers, and lists of numbers, by name.

    Workers import it, so it is a function of a module. Without `settings` of its own it gets as many samples as the
    curvature does, which is what second derivatives may cost.
    """

    name: str
    measure: Callable[[Subject, Settings], Values]
    settings: Callable[[Samples], Settings] = lambda samples: {"samples": samples.geometry}

    def task(self, samples: Samples) -> Task:
        """Return what to take where a preset allows so many samples."""
        return Task(self.name, self.measure, self.settings(samples))

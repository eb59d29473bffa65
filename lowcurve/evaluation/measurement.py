"""What is a measurement? A name, a function of a subject and settings, and how a budget becomes those settings."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lowcurve.evaluation.subject import Subject

if TYPE_CHECKING:
    import numpy
    from torch import Tensor

Settings = dict[str, Any]
Values = dict[str, Any]
PER_SAMPLE = "per_sample"  # the key of `Values` under which a measurement keeps a text of numbers for each name
_BITS = "bits:"


@dataclass(frozen=True)
class Budget:
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

    A mean over samples should come with `per_sample`, {name: `written(values)`}: what chance makes of it, and so a
    verdict, is known by these; where `NAME_median` is measured too, it is the median of the same values.
    Workers import it, so it is a function of a module. Without `settings` of its own it gets as many samples as the
    curvature does, which is what second derivatives may cost.
    """

    name: str
    measure: Callable[[Subject, Settings], Values]
    settings: Callable[[Budget], Settings] = lambda samples: {"samples": samples.geometry}

    def task(self, samples: Budget) -> Task:
        """Return what to take where a preset allows so many samples."""
        return Task(self.name, self.measure, self.settings(samples))


def written(values: "Tensor") -> str:
    """Write one number per sample as text, six digits each; of hits and misses one digit each.

    >>> import torch
    >>> written(torch.tensor([0.5, float("nan"), 1234567.0])), written(torch.tensor([True, False]))
    ('0.5 nan 1.23457e+06', 'bits:10')
    """
    import torch

    if values.dtype == torch.bool:
        return _BITS + "".join("1" if hit else "0" for hit in values.tolist())
    return " ".join(f"{value:.6g}" for value in values.tolist())


def read_written(text: str) -> "numpy.ndarray":
    """Read what `written` wrote; a sample that was not finite is NaN.

    >>> read_written("0.5 inf 2").tolist(), read_written("bits:10").tolist()
    ([0.5, nan, 2.0], [1.0, 0.0])
    """
    import numpy

    words = list(text.removeprefix(_BITS)) if text.startswith(_BITS) else text.split()
    values = numpy.array([float(word) for word in words])
    return numpy.where(numpy.isfinite(values), values, numpy.nan)

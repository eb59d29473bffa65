"""What an experiment is: rows (runs), columns (what is measured), the paper's numbers, and claims to judge."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from lowcurve.evaluation.measurement import Measurement
from lowcurve.experiments.claims import Claim

if TYPE_CHECKING:
    from lowcurve.experiments.grid import PlannedRun
    from lowcurve.experiments.presets import Preset

Printed = tuple[float, float | None]  # mean and spread over runs, as the paper prints it
Measured = Mapping[str, Mapping[int, Mapping[str, Any]]]  # row key -> seed -> what was measured


@dataclass(frozen=True)
class Column:
    """One measured quantity: its key in a measurement, its heading, printed digits, and which way is better."""

    key: str
    label: str
    digits: int = 2
    better: Literal["low", "high", "none"] = "low"
    scale: float = 1.0  # the paper prints percentages; accuracies are measured as fractions


@dataclass(frozen=True)
class Row:
    """One kind of model: a method, and settings of the method or the training that differ from the preset's."""

    key: str
    label: str
    method: str
    overrides: Mapping[str, Any] = field(default_factory=dict)  # dotted config key -> value
    ours: bool = False  # a row that the paper does not have


@dataclass(frozen=True)
class Curve:
    """A figure: one line per row, from the list-valued measurements `x` and `y`."""

    x: str
    y: str
    x_label: str
    y_label: str
    log: bool = False
    predicted: str | None = None  # a second list to draw dashed, e.g. the curve that theory predicts


@dataclass(frozen=True)
class Experiment:
    """A table or a figure, wholly as data; `EXPERIMENTS[name] = Experiment(name, …)` is all that it needs.

    `data` and `model` are the paper's; a preset may put others in their place. `columns` and `curves` pick from what
    the `measurements` return.
    """

    name: str
    title: str
    rows: tuple[Row, ...]
    measurements: tuple[Measurement, ...]
    columns: tuple[Column, ...] = ()
    source: str = "Not in the paper"  # where the paper has it
    data: str = "cifar100"
    model: str = "resnet18"
    curves: tuple[Curve, ...] = ()
    paper: Mapping[str, Mapping[str, Printed]] = field(default_factory=dict)  # row key -> column key -> number
    claims: tuple[Claim, ...] = ()
    derive: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda values: {}  # more values from those measured
    extend: Callable[[Measured], Mapping[str, Any]] = lambda measured: {}  # more curves, pictures
    notes: tuple[str, ...] = ()
    # for what only a comparison can tell: measures untrained runs together and says in what setting
    together: "Callable[[Sequence[PlannedRun], Preset], tuple[str, Measured]] | None" = None
    command: str = ""  # what makes it, where that is not `lowcurve reproduce NAME`
    seeds: tuple[int, ...] = ()  # others than the preset's: one where that is enough, more where they differ much
    told: bool = True  # its table says on which images the preset's λ and rates were chosen, which its runs have
    apart: bool = False  # too much work to be part of `lowcurve reproduce all`


METHOD_LABELS = {
    "standard": "Standard (softplus β=1000)",
    "relu": "ReLU",
    "lcnn": "LCNN",
    "gradreg": "GradReg",
    "lcnn+gradreg": "LCNN + GradReg",
    "cure": "CURE",
    "softplus-wd": "Softplus β=10 + weight decay",
    "adv": "Adversarial training",
    "cure+gradreg": "CURE + GradReg",
    "lcnn+gradreg+adv": "LCNN + GradReg + adv. training",
    "convsn-only": "Conv spectral norm only",
    "gbn-only": "γ-BN only",
    "csoftplus-only": "Centered softplus only",
    "minimal": "Minimal (released README)",
}

ACCURACY = Column("accuracy", "Accuracy (%)", 2, "high", 100.0)
CLEAN = Column("accuracy", "Clean (%)", 2, "high", 100.0)  # of the samples that are attacked, fewer than all


def rows(*methods: str, ours: tuple[str, ...] = ()) -> tuple[Row, ...]:
    """Return one plain row per method; those of `ours` are not in the paper's table."""
    return tuple(Row(name, _label(name), name, ours=name in ours) for name in (*methods, *ours))


def _label(method: str) -> str:
    if method in METHOD_LABELS:  # without PyTorch, so that a list of experiments is printed at once
        return METHOD_LABELS[method]
    from lowcurve.methods import find_method

    return find_method(method).title


def printed(columns: Sequence[str], numbers: Mapping[str, Sequence[float | Printed]]) -> dict[str, dict[str, Printed]]:
    """Return the paper's numbers by row and column; a number without a spread may stand alone.

    >>> printed(["accuracy"], {"standard": [77.4]})
    {'standard': {'accuracy': (77.4, None)}}
    """
    return {
        row: {
            column: number if isinstance(number, tuple) else (number, None)
            for column, number in zip(columns, found, strict=True)
        }
        for row, found in numbers.items()
    }

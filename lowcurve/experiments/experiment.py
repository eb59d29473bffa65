"""What an experiment is: rows (runs), columns (what is measured), the paper's numbers, and claims to judge."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from lowcurve.experiments.claims import Claim
from lowcurve.experiments.paper import Row as PaperRow


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
    """A table or a figure of the paper, wholly as data.

    `data` and `model` are the paper's; a preset may put others in their place. `measurements` name functions of
    `lowcurve.experiments.measurements`; `columns` and `curves` pick from what those return.
    """

    name: str
    title: str
    source: str  # where the paper has it
    data: str
    model: str
    rows: tuple[Row, ...]
    measurements: tuple[str, ...]
    columns: tuple[Column, ...] = ()
    curves: tuple[Curve, ...] = ()
    paper: Mapping[str, PaperRow] = field(default_factory=dict)
    claims: tuple[Claim, ...] = ()
    derive: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda values: {}  # more values from those measured
    extend: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda measured: {}  # more curves, pictures
    notes: tuple[str, ...] = ()
    timed: bool = False  # measured by trainings that take turns, not run by run
    command: str = ""  # what makes it, where that is not `lowcurve reproduce NAME`
    seeds: tuple[int, ...] = ()  # fewer than the preset's, where one is enough


LABELS = {
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


def rows(*methods: str, ours: tuple[str, ...] = ()) -> tuple[Row, ...]:
    """Return one plain row per method; those of `ours` are not in the paper's table."""
    return tuple(Row(name, LABELS[name], name, ours=name in ours) for name in (*methods, *ours))

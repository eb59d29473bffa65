"""How sure is a mean over few seeds? A 95 % interval by Student's t, and lines of figures with their bands."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from lowcurve.experiments.experiment import Column, Measured, Row

# The 97.5 % quantile of Student's t with 1, 2, … degrees of freedom; beyond them by its expansion.
_QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
RowKeys = Mapping[tuple[str, float], str]  # (method, level) -> the row's key


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean and the ends of its 95 % interval, x̄ ± t s/√n; of one value both ends are the value.

    >>> [round(number, 2) for number in interval([1.0, 2.0, 3.0])]
    [2.0, -0.48, 4.48]
    """
    mean = statistics.fmean(values)
    if len(values) == 1:
        return mean, mean, mean
    freedom = len(values) - 1
    quantile = _QUANTILES[freedom - 1] if freedom <= len(_QUANTILES) else 1.96 + 2.4 / freedom + 3.0 / freedom**2
    reach = quantile * statistics.stdev(values) / math.sqrt(len(values))
    return mean, mean - reach, mean + reach


def range_line(row: Row, x: Sequence[float], seeds: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Return the line of a row: the mean over seeds at each of `x`, and the lowest and the highest."""
    stacks = list(zip(*seeds, strict=True))
    return {
        "row": row.key,
        "label": row.label,
        "x": list(x),
        "y": [statistics.fmean(stack) for stack in stacks],
        "low": [min(stack) for stack in stacks],
        "high": [max(stack) for stack in stacks],
    }


def level_figures(
    measured: Measured, rows: RowKeys, labels: Mapping[str, str], x_label: str, columns: Sequence[Column]
) -> list[dict[str, Any]]:
    """Draw each column over the levels, and how far each method is from the first of `labels`.

    Runs of one seed share their data and the order of batches: their difference varies less than they do themselves.
    """
    base, *others = labels
    drawn = []
    for column in columns:
        found = [_line(measured, rows, method, label, column) for method, label in labels.items()]
        apart = [_line(measured, rows, method, f"{labels[method]} − {base}", column, base) for method in others]
        for title, lines in ((column.label, found), (f"Difference: {column.label}", apart)):
            if known := [line for line in lines if line["x"]]:
                drawn.append({"x_label": x_label, "y_label": title, "log": False, "lines": known})
    return drawn


def _line(
    measured: Measured, rows: RowKeys, method: str, label: str, column: Column, base: str | None = None
) -> dict[str, Any]:
    """Return the mean at each level with its interval, less that of `base` seed by seed; what is missing stays out."""
    line: dict[str, Any] = {"row": method, "label": label, "x": [], "y": [], "low": [], "high": []}
    for (other, level), row in rows.items():
        ours = _values(measured, row, column)
        theirs = _values(measured, rows[base, level], column) if base else dict.fromkeys(ours, 0.0)
        both = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
        if other == method and both:
            for name, number in zip(("x", "y", "low", "high"), (level, *interval(both)), strict=True):
                line[name].append(number)
    return line


def _values(measured: Measured, row: str, column: Column) -> dict[int, float]:
    seeds = measured.get(row, {})
    return {seed: values[column.key] * column.scale for seed, values in seeds.items() if column.key in values}

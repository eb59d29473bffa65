"""How is what was measured of each sample spread? A figure: what share of the samples has more than how much.

Normalized curvature has a heavy tail: a mean is what a few samples make of it, and a line shows all of them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lowcurve.evaluation.measurement import PER_SAMPLE, read_written
from lowcurve.experiments.experiment import Measured, Row
from lowcurve.experiments.intervals import range_line

SHARES = (1, 2, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90)  # of the samples, in percent


def tails(
    key: str, label: str, rows: Sequence[Row], without: Sequence[str] = ()
) -> Callable[[Measured], Mapping[str, Any]]:
    """Return an experiment's `extend`: what each share of the samples exceeds, as a mean and a range over seeds."""

    def extend(measured: Measured) -> Mapping[str, Any]:
        lines = []
        for row in rows:
            seeds = measured.get(row.key, {}).values() if row.key not in without else ()
            kept = [values[PER_SAMPLE][key][1] for values in seeds if key in values.get(PER_SAMPLE, {})]
            if known := [line for text in kept if (line := exceeded(text))]:
                lines.append(range_line(row, SHARES, known))
        curve = {"x_label": "share of the samples that have more (%)", "y_label": label, "log": True}
        return {"curves": [{**curve, "lines": lines}]} if lines else {}

    return extend


def exceeded(text: str) -> list[float]:
    """Return what each of `SHARES` of the samples, written as text, exceeds; those that are not finite do not count.

    Where none is finite nothing is returned.

    >>> exceeded(" ".join(map(str, range(1, 102))) + " nan")
    [100.0, 99.0, 96.0, 91.0, 81.0, 71.0, 61.0, 51.0, 41.0, 31.0, 21.0, 11.0]
    """
    import numpy

    values = read_written(text)
    values = values[numpy.isfinite(values)]
    return (
        [float(number) for number in numpy.percentile(values, [100 - share for share in SHARES])] if len(values) else []
    )

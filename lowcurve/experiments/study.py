"""What is a study? Three methods at several shares of something, three seeds each, and figures over the shares.

`label_noise.py` and `small_data.py` are studies: each has its shares, its measurement, its columns and its claims.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from lowcurve.evaluation.measurement import Measurement
from lowcurve.experiments.experiment import METHOD_LABELS, Column, Experiment, Measured, Row
from lowcurve.experiments.geometry import GEOMETRY
from lowcurve.experiments.intervals import level_figures

STUDIED = ("standard", "lcnn", "lcnn+gradreg")
SEEDS = (0, 1, 2)
_NOTE = "Bands of the figures are 95 % intervals of the mean over seeds (Student's t)."


def study(
    shares: Mapping[float, Mapping[str, Any]],
    of: str,
    x_label: str,
    measurement: Measurement,
    columns: Sequence[Column],
    drawn: Sequence[str],
    notes: Sequence[str],
    **more: Any,
) -> Experiment:
    """Return the experiment: `shares` has the settings of each share, `of` says in a row's label what it is a share of.

    The row of a method at a share is METHOD-PERCENT. The columns named in `drawn` become figures over the shares.
    """
    keys = {(method, 100 * share): f"{method}-{100 * share:g}" for share in shares for method in STUDIED}
    labels = {method: METHOD_LABELS[method] for method in STUDIED}

    def extend(measured: Measured) -> Mapping[str, Any]:
        return {"curves": level_figures(measured, keys, labels, x_label, [one for one in columns if one.key in drawn])}

    return Experiment(
        data="cifar10",
        rows=tuple(
            Row(f"{method}-{100 * share:g}", f"{label}, {100 * share:g} % {of}", method, settings, ours=True)
            for share, settings in shares.items()
            for method, label in labels.items()
        ),
        measurements=(GEOMETRY, measurement),
        columns=tuple(columns),
        extend=extend,
        notes=(*notes, _NOTE),
        seeds=SEEDS,
        apart=True,
        **more,
    )

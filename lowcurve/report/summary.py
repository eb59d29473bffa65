"""What came out, in one small table? Accuracy, curvature and robustness of each method, by the largest preset."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from lowcurve import text
from lowcurve.experiments.presets import PRESETS
from lowcurve.experiments.results import Result
from lowcurve.report.tables import number_text

Values = Mapping[str, float]  # by seed
GEOMETRY, ATTACKS = "table-geometry", "table-attacks"
RADII = ("0.1", "0.2")


def in_short(results: Sequence[Result]) -> list[str]:
    """Return the lines of the table; none without a table of geometry by one of the package's presets."""
    found = {(result.experiment, result.preset): result for result in results}
    preset = next((name for name in reversed(PRESETS) if (GEOMETRY, name) in found), None)
    if preset is None:
        return []
    geometry = found[GEOMETRY, preset]
    attacked = _cells(found[ATTACKS, preset]) if (ATTACKS, preset) in found else {}
    cells = _cells(geometry)
    standard = cells.get("standard", {}).get("curvature", {})
    head = [
        "method",
        "accuracy (%)",
        "curvature C_f",
        "of standard",
        *(f"PGD {radius} (%)" for radius in RADII),
        "runs",
    ]
    lines = [
        f"By the preset `{preset}`: {text.markdown(geometry.setting)}. Means over seeds, ratios over the seeds that "
        "both have; curvature and attacks on test images.",
        "",
        "| " + " | ".join(head) + " |",
        "|---|" + "--:|" * (len(head) - 1),
    ]
    for row in geometry.rows:
        measured = cells[row["key"]]
        if measured:
            curvature = measured.get("curvature", {})
            robust = [_mean(attacked.get(row["key"], {}).get(f"pgd_{radius}", {}), 1) for radius in RADII]
            numbers = [
                _mean(measured.get("accuracy", {}), 1),
                _mean(curvature, 1),
                _ratio(curvature, standard),
                *robust,
            ]
            lines.append(f"| {text.markdown(row['label'])} | " + " | ".join(numbers) + f" | {len(row['runs'])} |")
    return lines


def _cells(result: Result) -> dict[str, dict[str, Values]]:
    return {row["key"]: {key: cell["values"] for key, cell in row["cells"].items()} for row in result.rows}


def _mean(values: Values, digits: int) -> str:
    return number_text(statistics.fmean(values.values()) if values else None, digits=digits)


def _ratio(values: Values, base: Values) -> str:
    """Print the ratio of two means over the seeds that both have.

    >>> _ratio({"0": 1.0}, {"0": 4.0, "1": 100.0})
    '0.250'
    """
    shared = values.keys() & base.keys()
    over: Any = sum(base[seed] for seed in shared)
    return number_text(sum(values[seed] for seed in shared) / over if over else None, digits=3)

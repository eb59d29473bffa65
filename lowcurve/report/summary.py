"""What came out, in one small table? Accuracy, curvature and robustness of each method, by the largest preset."""

import statistics
from collections.abc import Mapping, Sequence

from lowcurve import text
from lowcurve.experiments import experiment_of
from lowcurve.experiments.presets import PRESETS
from lowcurve.experiments.results import Result
from lowcurve.report.tables import number_text

Values = Mapping[str, float]  # by seed
Cells = Mapping[str, Values]  # of a row, by column
GEOMETRY, ATTACKS = "table-geometry", "table-attacks"
RADII = ("0.1", "0.2")
HEAD = (
    "method",
    "accuracy (%)",
    "curvature C_f",
    "of standard",
    "paper",
    *(f"PGD {radius} (%)" for radius in RADII),
    "seeds",
)


def in_short(results: Sequence[Result]) -> list[str]:
    """Return the lines of a table per data set; none without a table of geometry by one of the package's presets."""
    found = {
        (result.preset, result.experiment): result
        for result in results
        if experiment_of(result.experiment) in (GEOMETRY, ATTACKS)
    }
    preset = next((name for name in reversed(PRESETS) if (name, GEOMETRY) in found), None)
    if preset is None:
        return []
    lines = [
        f"By the preset `{preset}`. Means over seeds, ratios over the seeds that both have, beside the paper's "
        "(Table 1, CIFAR-100); curvature and attacks on test images."
    ]
    for (of, table), geometry in found.items():
        if of == preset and experiment_of(table) == GEOMETRY:
            attacks = found.get((preset, table.replace(GEOMETRY, ATTACKS)))
            lines += ["", f"{text.markdown(geometry.setting)}:", "", *_table(geometry, attacks)]
    return lines


def _table(geometry: Result, attacks: Result | None) -> list[str]:
    cells, attacked = _cells(geometry), _cells(attacks) if attacks else {}
    printed = {row["key"]: row["paper"].get("curvature", (None,))[0] for row in geometry.rows}
    standard = cells.get("standard", {}).get("curvature", {})
    lines = ["| " + " | ".join(HEAD) + " |", "|---|" + "--:|" * (len(HEAD) - 1)]
    for row in geometry.rows:
        key, measured = row["key"], cells[row["key"]]
        if not measured:
            continue
        curvature = measured.get("curvature", {})
        numbers = [
            _mean(measured.get("accuracy", {}), 1),
            _mean(curvature, 1),
            _ratio(curvature, standard),
            _ratio(_printed(printed[key]), _printed(printed.get("standard"))),
            *(_mean(attacked.get(key, {}).get(f"pgd_{radius}", {}), 1) for radius in RADII),
        ]
        lines.append(f"| {text.markdown(row['label'])} | " + " | ".join([*numbers, _seeds(measured)]) + " |")
    return lines


def _cells(result: Result) -> dict[str, Cells]:
    return {row["key"]: {key: cell["values"] for key, cell in row["cells"].items()} for row in result.rows}


def _seeds(cells: Cells) -> str:
    """Say of which seeds the numbers are.

    >>> _seeds({"accuracy": {"10": 0.9, "2": 0.8}, "curvature": {"2": 3.0}})
    '2, 10'
    """
    seeds = {seed for values in cells.values() for seed in values}
    return text.markdown(", ".join(sorted(seeds, key=lambda seed: (len(seed), seed))))  # a file may call them anything


def _printed(number: float | None) -> Values:
    return {} if number is None else {"mean": number}


def _mean(values: Values, digits: int) -> str:
    return number_text(statistics.fmean(values.values()) if values else None, digits=digits)


def _ratio(values: Values, base: Values) -> str:
    """Print the ratio of two means over the seeds that both have.

    >>> _ratio({"0": 1.0}, {"0": 4.0, "1": 100.0})
    '0.250'
    """
    shared = values.keys() & base.keys()
    over = sum(base[seed] for seed in shared)
    return number_text(sum(values[seed] for seed in shared) / over if over else None, digits=3)

"""The result of an experiment as one JSON file: numbers, verdicts, and the command, seeds and versions behind them.

`DIR/PRESET/EXPERIMENT.json` holds a table or figure; `DIR/PRESET/runs/RUN.json` holds each run that it rests on
(config, environment, epochs, measurements), once, however many tables use it.
"""

import json
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy

from lowcurve.environment import environment
from lowcurve.errors import UserError
from lowcurve.evaluation.checked import check, read_json
from lowcurve.evaluation.schema import Record, ResultFile
from lowcurve.experiments.claims import Cell, around, verdicts
from lowcurve.experiments.experiment import Column, Curve, Experiment, Measured
from lowcurve.experiments.intervals import range_line
from lowcurve.experiments.presets import PRESETS
from lowcurve.experiments.redraw import Redrawn, redraw
from lowcurve.files import read_bytes, write_json

COLLECTED = ("created", "environment")  # what of a result changes each time it is collected


@dataclass(frozen=True)
class Result:
    """A table or figure with everything needed to print it, judge it and run it again."""

    experiment: str
    title: str
    source: str
    preset: str
    setting: str
    command: str
    created: str
    environment: dict[str, str]
    columns: list[dict[str, Any]]
    rows: list[dict[str, Any]]
    verdicts: list[dict[str, Any]]
    curves: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether every row has numbers."""
        return all(row["cells"] for row in self.rows)

    def save(self, folder: Path) -> Path:
        """Write `folder/PRESET/EXPERIMENT.json`; a file with the same numbers keeps the date and versions it has."""
        path, content = folder / self.preset / f"{self.experiment}.json", asdict(self)
        return path if _holds(path, content) else write_json(path, content)


def _holds(path: Path, content: dict[str, Any]) -> bool:
    """Whether a file holds this already, but for when and by which versions it was collected."""
    try:
        found = json.loads(read_bytes(path))
    except (OSError, ValueError, RecursionError):
        return False
    new = {key: value for key, value in json.loads(json.dumps(content)).items() if key not in COLLECTED}
    return isinstance(found, dict) and {key: found[key] for key in found if key not in COLLECTED} == new


def load_results(folder: Path) -> dict[Path, Result]:
    """Read every result under `folder`, in the order of the paper, by the path of its file."""
    results = find_results(folder)
    if not results:
        raise UserError(
            f"expected runs, or results of `lowcurve reproduce` or `lowcurve demo`, found none under {folder}"
        )
    return results


def find_results(folder: Path) -> dict[Path, Result]:
    """Read what results there are under `folder`."""
    from lowcurve.experiments import EXPERIMENTS, experiment_of

    results = {}
    for path in sorted(folder.rglob("*.json")):
        if path.parent.name == "runs":
            continue
        content = read_json(path)
        if isinstance(content, dict) and content.keys() & {"experiment", "columns", "verdicts"}:
            results[path] = Result(**check(ResultFile, content, path))
    known, sizes = list(EXPERIMENTS), list(PRESETS)

    def place(item: tuple[Path, Result]) -> tuple[int, str, int, str]:
        """Put the largest preset first, a table on other data behind that table, and one that nobody knows last."""
        result = item[1]
        size = -sizes.index(result.preset) if result.preset in sizes else 1
        base = experiment_of(result.experiment)
        return size, result.preset, known.index(base) if base else len(known), result.experiment

    return dict(sorted(results.items(), key=place))


def load_runs(folder: Path) -> dict[str, dict[str, Any]]:
    """Read the records of the runs under `folder`, by name."""
    records = [check(Record, read_json(path), path) for path in sorted(folder.rglob("runs/*.json"))]
    return {record["name"]: record for record in records}


def tabulate(
    experiment: Experiment,
    measured: Measured,
    runs: Mapping[str, list[str]],
    preset: str = "",
    setting: str = "",
    command: str = "",
) -> dict[str, Any]:
    """Turn what was measured into the parts of a `Result`, with what a reader needs to make it again."""
    draws = redraw(measured, experiment.columns, experiment.derive)
    return {
        "experiment": experiment.name,
        "title": experiment.title,
        "source": experiment.source,
        "preset": preset,
        "setting": setting,
        "command": command,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": environment(),
        "notes": list(experiment.notes),
        "columns": [asdict(column) for column in experiment.columns],
        "rows": [
            {
                "key": row.key,
                "label": row.label,
                "ours": row.ours,
                "cells": {
                    column.key: cell
                    for column in experiment.columns
                    if (cell := _cell(column, measured.get(row.key, {}), draws.mean((row.key, column.key)))) is not None
                },
                "paper": {key: list(number) for key, number in experiment.paper.get(row.key, {}).items()},
                "runs": list(runs.get(row.key, [])),
            }
            for row in experiment.rows
        ],
        "verdicts": _judge(experiment, measured, draws),
        "curves": [lines for curve in experiment.curves if (lines := _lines(experiment, curve, measured))["lines"]],
    }


def _cell(column: Column, seeds: Mapping[int, Mapping[str, Any]], draws: numpy.ndarray | None) -> dict[str, Any] | None:
    values = {
        str(seed): value * column.scale
        for seed, found in sorted(seeds.items())
        if (value := found.get(column.key)) is not None
    }
    if not values:
        return None
    numbers = list(values.values())
    low, high = around(statistics.fmean(numbers), draws)
    return {
        "mean": statistics.fmean(numbers),
        "std": statistics.stdev(numbers) if len(numbers) > 1 else None,
        "values": values,
        "low": low,
        "high": high,
    }


def _judge(experiment: Experiment, measured: Measured, draws: Redrawn) -> list[dict[str, Any]]:
    def printed(position: Cell) -> float | None:
        number = experiment.paper.get(position[0], {}).get(position[1])
        return number[0] if number else None

    ours = {
        (row, column.key): {
            seed: number * column.scale
            for seed, values in found.items()
            if (number := values.get(column.key)) is not None
        }
        for row, found in measured.items()
        for column in experiment.columns
    }
    return verdicts(experiment.claims, ours, printed, draws.mean)


def _lines(experiment: Experiment, curve: Curve, measured: Measured) -> dict[str, Any]:
    lines = []
    for row in experiment.rows:
        seeds = [values for values in measured.get(row.key, {}).values() if curve.y in values]
        if not seeds:
            continue
        line = range_line(row, seeds[0][curve.x], [values[curve.y] for values in seeds])
        if curve.predicted:
            line["predicted"] = [
                statistics.fmean(stack) for stack in zip(*(values[curve.predicted] for values in seeds), strict=True)
            ]
        lines.append(line)
    return {"x_label": curve.x_label, "y_label": curve.y_label, "log": curve.log, "lines": lines}

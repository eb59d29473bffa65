"""What was measured of a run? One line each in RUN/measurements.jsonl, added when it is taken and never changed.

A measurement is taken once: the same name and settings on the same weights find the line. Earlier versions kept a file
per name in RUN/experiments; those are read, too.
"""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lowcurve.environment import environment
from lowcurve.errors import UserError
from lowcurve.evaluation.checked import check, read_json
from lowcurve.evaluation.measurement import PER_SAMPLE, Task
from lowcurve.evaluation.schema import Line, Taken
from lowcurve.evaluation.subject import SEED, Subject
from lowcurve.files import append, read_lines
from lowcurve.training.runs import Run

FILE = "measurements.jsonl"


def take(task: Task, subject: Subject, folder: Path) -> None:
    """Take a measurement of a trained run and add it to the run's others."""
    started = time.perf_counter()
    values = task.measure(subject, task.settings)
    kept = values.pop(PER_SAMPLE, {}) if isinstance(values, dict) else {}
    line = {
        "name": task.name,
        "weights": _weights(folder),
        "values": values,
        **({PER_SAMPLE: kept} if kept else {}),
        "settings": task.settings,
        "seed": SEED,
        "seconds": round(time.perf_counter() - started, 2),
        "environment": environment(),
    }
    try:
        content = json.dumps(line, ensure_ascii=False, allow_nan=False)
        check(Line, json.loads(content), folder / FILE)
    except (TypeError, ValueError, UserError) as error:
        expected = "expected finite numbers, texts and lists of them by names without spaces"
        raise UserError(f"measurement {task.name!r}: {expected}, got {values!s:.200} ({error})") from None
    append(folder / FILE, content + "\n")


def taken(folder: Path) -> list[dict[str, Any]]:
    """Return what was measured of a run's weights, oldest first; what is damaged is left out, to be taken again."""
    found: list[dict[str, Any]] = []
    for path in sorted((folder / "experiments").glob("*.json")):
        try:
            found.append({"name": path.stem, **check(Taken, read_json(path), path)})
        except UserError:
            continue
    for line in _lines(folder / FILE):
        try:
            found.append(check(Line, json.loads(line), folder / FILE))
        except (UserError, ValueError, RecursionError):
            continue
    weights = _weights(folder)
    return [one for one in found if one.get("weights", weights) == weights]


def find_taken(measurements: Iterable[Mapping[str, Any]], task: Task) -> dict[str, Any] | None:
    """Return the last measurement of this name that was taken with these settings."""
    fitting = [one for one in measurements if one["name"] == task.name and one["settings"] == task.settings]
    return dict(fitting[-1]) if fitting else None


def missing(folder: Path, tasks: Sequence[Task]) -> list[Task]:
    """Return the measurements that have not been taken of the run in `folder`."""
    known = taken(folder)
    return [task for task in tasks if find_taken(known, task) is None]


def _lines(path: Path) -> list[bytes]:
    try:
        return read_lines(path)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; remove it") from None


def _weights(folder: Path) -> str:
    """Return the checksum of the run's final weights."""
    return Run(folder).weights_sha256

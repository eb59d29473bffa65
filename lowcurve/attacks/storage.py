"""Where do the rows live? In `samples.csv`, appended batch by batch, so that a killed evaluation can go on."""

import csv
import io
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, astuple, fields
from pathlib import Path
from typing import Any

from lowcurve.attacks.table import AttackedSample, Evaluation
from lowcurve.errors import UserError
from lowcurve.files import append, lock, make_folder, read_bytes, read_lines, write_json

_COLUMNS = [field.name for field in fields(AttackedSample)]


class Storage:
    """A folder with `settings.json` (what the rows are about), `samples.csv` and, in the end, `summary.json`.

    A row is written once and never changed. A line that a kill has torn is dropped, and its sample done again.
    """

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self.folder = folder
        self.samples = folder / "samples.csv"
        known = folder / "settings.json"
        if not known.exists():
            write_json(known, settings)
        before = _settings(known)
        differing = [key for key, value in settings.items() if before.get(key) != value]
        if differing:
            raise UserError(
                f"expected {folder} to be empty or of the same evaluation, got one with another "
                f"{', '.join(differing)}; choose another folder or delete this one"
            )

    def read(self) -> list[AttackedSample]:
        """Return the rows so far, each once; a new file gets its headings.

        Files of earlier versions may hold rows twice, where two processes wrote at the same time.
        """
        try:
            lines = read_lines(self.samples)
        except OSError as error:
            raise UserError(f"cannot read {self.samples}: {error.strerror}; remove it") from None
        if not lines:
            append(self.samples, ",".join(_COLUMNS) + "\n")
        rows: dict[tuple[str, int, float, int], AttackedSample] = {}
        try:
            for record in csv.DictReader(line.decode() for line in lines):
                row = _parse(record)
                rows.setdefault((row.attack, row.steps, row.eps, row.sample), row)
        except (ValueError, KeyError, TypeError, csv.Error) as error:
            raise UserError(f"{self.samples} is damaged ({error}); delete {self.folder} and attack anew") from None
        return list(rows.values())

    def append(self, rows: Iterable[AttackedSample]) -> None:
        """Add rows and wait until the disk has them."""
        text = io.StringIO(newline="")
        csv.writer(text, lineterminator="\n").writerows(astuple(row) for row in rows)
        append(self.samples, text.getvalue())

    def finish(self, evaluation: Evaluation) -> None:
        """Write the table and the flags; the file's presence says that the evaluation is complete."""
        summary = {
            "norm": str(evaluation.norm),
            "flags": list(evaluation.flags),
            "table": [asdict(cell) for cell in evaluation.cells],
        }
        write_json(self.folder / "summary.json", summary)


@contextmanager
def opened(folder: Path, settings: dict[str, Any]) -> Iterator[Storage]:
    """Hold a folder for one evaluation: two at a time would write every row twice."""
    with lock(make_folder(folder)):
        yield Storage(folder, settings)


def _settings(path: Path) -> dict[str, Any]:
    try:
        settings = json.loads(read_bytes(path))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"cannot read {path}: {error}; delete its folder and attack anew") from None
    return settings if isinstance(settings, dict) else {}


def _parse(record: dict[str, str]) -> AttackedSample:
    return AttackedSample(
        sample=int(record["sample"]),
        label=int(record["label"]),
        clean=int(record["clean"]),
        attack=record["attack"],
        steps=int(record["steps"]),
        eps=float(record["eps"]),
        success={"True": True, "False": False}[record["success"]],
        predicted=int(record["predicted"]),
        distance=float(record["distance"]),
    )

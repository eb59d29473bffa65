"""Where do the rows live? In `samples.csv`, appended batch by batch, so that a killed evaluation can go on."""

import csv
import hashlib
import io
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, astuple, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lowcurve.attacks.table import Evaluation, Row
from lowcurve.errors import UserError
from lowcurve.files import write_json

_COLUMNS = [field.name for field in fields(Row)]


class Storage:
    """A folder with `settings.json` (what the rows are about), `samples.csv` and, in the end, `summary.json`.

    A row is written once and never changed. A line that a kill has torn is dropped, and its sample done again.
    """

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self.folder = folder
        self.samples = folder / "samples.csv"
        folder.mkdir(parents=True, exist_ok=True)
        known = folder / "settings.json"
        if not known.exists():
            write_json(known, settings)
        differing = [key for key, value in settings.items() if json.loads(known.read_text()).get(key) != value]
        if differing:
            raise UserError(
                f"expected {folder} to be empty or of the same evaluation, got one with another "
                f"{', '.join(differing)}; choose another folder or delete this one"
            )

    def read(self) -> list[Row]:
        """Return the rows so far, after cutting off a torn last line."""
        if not self.samples.exists():
            return []
        text = self.samples.read_text()
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            os.truncate(self.samples, len(whole.encode()))
        return [_parse(record) for record in csv.DictReader(io.StringIO(whole))]

    def append(self, rows: Iterable[Row]) -> None:
        """Add rows and wait until the disk has them."""
        with self.samples.open("a", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            if not file.tell():
                writer.writerow(_COLUMNS)
            writer.writerows(astuple(row) for row in rows)
            file.flush()
            os.fsync(file.fileno())

    def finish(self, evaluation: Evaluation) -> None:
        """Write the table and the flags; the file's presence says that the evaluation is complete."""
        summary = {
            "norm": str(evaluation.norm),
            "flags": list(evaluation.flags),
            "table": [asdict(cell) for cell in evaluation.cells],
        }
        write_json(self.folder / "summary.json", summary)


def _parse(record: dict[str, str]) -> Row:
    return Row(
        sample=int(record["sample"]),
        label=int(record["label"]),
        clean=int(record["clean"]),
        attack=record["attack"],
        steps=int(record["steps"]),
        eps=float(record["eps"]),
        success=record["success"] == "True",
        predicted=int(record["predicted"]),
        distance=float(record["distance"]),
    )


def fingerprint(*tensors: Tensor) -> str:
    """Return a digest of the tensors' shapes, types and bytes."""
    digest = hashlib.sha256()
    for tensor in tensors:
        data = tensor.detach().cpu().contiguous()
        digest.update(f"{tuple(data.shape)} {data.dtype}".encode())
        digest.update(data.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def model_fingerprint(model: nn.Module) -> str:
    """Return a digest of a model's parameters and buffers."""
    return fingerprint(*model.state_dict().values())

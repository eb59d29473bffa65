"""Where are batches kept until all are measured? In a file with a line for each, so that a kill loses one at most."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lowcurve.files import append, read_lines, write_atomic


class Rows:
    """A file: in its first line what is measured, then one line per batch; a torn last line does not count.

    Numbers are written with all their digits. A file about something else is started anew.
    """

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        self._path, self._about = path, json.dumps(about, sort_keys=True)

    def read(self) -> list[dict[str, Tensor]]:
        """Return the batches so far, none of them of something else."""
        about, *batches = read_lines(self._path) or [b""]
        if about != self._about.encode():
            write_atomic(self._path, self._about + "\n")
            return []
        return [_tensors(json.loads(line)) for line in batches]

    def append(self, columns: dict[str, Tensor]) -> None:
        """Add a batch and wait until the disk has it."""
        line = json.dumps({name: [str(c.dtype).removeprefix("torch."), c.tolist()] for name, c in columns.items()})
        append(self._path, line + "\n")


def _tensors(columns: dict[str, Any]) -> dict[str, Tensor]:
    return {name: torch.tensor(values, dtype=getattr(torch, kind)) for name, (kind, values) in columns.items()}

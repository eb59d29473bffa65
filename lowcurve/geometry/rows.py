"""Where are batches kept until all are measured? In a file with a line for each, so that a kill loses one at most."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lowcurve.files import append, cut, read_bytes, write_atomic


class Rows:
    """A file: in its first line what is measured, then one line per batch; a torn last line does not count.

    Numbers are written with all their digits. A file about something else is started anew.
    """

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        self._path, self._about = path, json.dumps(about, sort_keys=True)

    def read(self) -> list[dict[str, Tensor]]:
        """Return the batches so far; the file then holds these and nothing else."""
        text = read_bytes(self._path) if self._path.exists() else b""
        whole = text[: text.rfind(b"\n") + 1]
        lines = whole.decode(errors="replace").splitlines()
        if not lines or lines[0] != self._about:
            write_atomic(self._path, self._about + "\n")
            return []
        if whole != text:
            cut(self._path, len(whole))
        return [_tensors(json.loads(line)) for line in lines[1:]]

    def append(self, columns: dict[str, Tensor]) -> None:
        """Add a batch and wait until the disk has it."""
        line = json.dumps({name: [str(c.dtype).removeprefix("torch."), c.tolist()] for name, c in columns.items()})
        append(self._path, line + "\n")


def _tensors(columns: dict[str, Any]) -> dict[str, Tensor]:
    return {name: torch.tensor(values, dtype=getattr(torch, kind)) for name, (kind, values) in columns.items()}

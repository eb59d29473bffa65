"""Where do the figures of a run go? One JSON line per epoch, TensorBoard events, a progress bar, the log."""

import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lowcurve.files import write_atomic
from lowcurve.layers.traits import learned_logs

logger = logging.getLogger("lowcurve.training")


class Meter:
    """Running means of a step's terms over an epoch, kept on the device: adding never waits for it."""

    def __init__(self, names: Sequence[str], device: torch.device) -> None:
        self.names = list(names)
        self.sums = torch.zeros(len(self.names) + 1, dtype=torch.float64, device=device)

    def add(self, terms: dict[str, Tensor], count: int) -> None:
        """Add the means over `count` samples."""
        values = torch.stack([terms[name] for name in self.names] + [terms[self.names[0]].new_ones(())])
        self.sums += values.double() * count

    def means(self, sums: Tensor | None = None) -> dict[str, float]:
        """Read the means; this waits for the device."""
        *totals, count = (self.sums if sums is None else sums).tolist()
        return {name: total / max(count, 1) for name, total in zip(self.names, totals, strict=True)}


class Log:
    """Writes `metrics.jsonl` and TensorBoard events from the first process; elsewhere it does nothing."""

    def __init__(self, folder: Path, epoch: int, enabled: bool = True) -> None:
        self.path = folder / "metrics.jsonl"
        self.rows = [row for row in read_metrics(folder) if row["epoch"] < epoch]
        self.enabled = enabled
        if enabled:
            from torch.utils.tensorboard import SummaryWriter

            write_atomic(self.path, "".join(json.dumps(row) + "\n" for row in self.rows))
            self.board = SummaryWriter(str(folder / "tensorboard"), purge_step=epoch or None)

    def write(self, row: dict[str, Any]) -> None:
        """Append one epoch."""
        self.rows.append(row)
        if not self.enabled:
            return
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())
        for key, value in row.items():
            named = value if isinstance(value, dict) else {"": value}
            for name, number in named.items():
                if number is not None:
                    self.board.add_scalar(f"{key}/{name}" if name else key, number, row["epoch"])
        self.board.flush()
        shown = ("loss", "train_accuracy", "test_accuracy", "images_per_second")
        logger.info(
            "epoch %d  %s",
            row["epoch"],
            "  ".join(f"{key} {row[key]:.4g}" for key in shown if row.get(key) is not None),
        )

    def close(self) -> None:
        """Close the event file."""
        if self.enabled:
            self.board.close()


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of `metrics.jsonl` up to the first that is not whole."""
    rows: list[dict[str, Any]] = []
    path = folder / "metrics.jsonl"
    for line in path.read_text("utf-8", errors="replace").splitlines() if path.is_file() else []:
        try:
            row = json.loads(line)
        except ValueError:
            break
        if not isinstance(row, dict) or row.get("epoch") != len(rows):
            break
        rows.append(row)
    return rows


def constants(model: nn.Module) -> dict[str, dict[str, float]]:
    """Return β of every activation and γ of every batch norm that learns it, by layer; of several the largest."""
    found: dict[str, dict[str, float]] = {}
    for kind in ("beta", "gamma"):
        values = {name: log.detach().exp().max() for name, log in learned_logs(model, kind).items()}
        numbers = torch.stack(list(values.values())).tolist() if values else []  # waits for the device once
        found[kind] = dict(zip(values, numbers, strict=True))
    return found

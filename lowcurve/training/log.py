"""Where do the figures of a run go? One JSON line per epoch, TensorBoard events, the log."""

import json
import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lowcurve.errors import UserError
from lowcurve.files import append, own_folder, read_lines, write_atomic, writing
from lowcurve.layers.normalized import normalized_layers
from lowcurve.layers.traits import learned_logs

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

NEEDED = {"loss", "train_accuracy", "images_per_second", "beta", "gamma"}  # in every row; evaluations are in some
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
    """Writes `metrics.jsonl` and TensorBoard events from the first process; elsewhere it does nothing.

    In the file what was judged is always called `test_…`; people read what it is, `judged`: test or held-out samples.
    """

    def __init__(self, folder: Path, epoch: int, judged: str, enabled: bool = True) -> None:
        self.path = folder / "metrics.jsonl"
        self.rows = _whole_rows(self.path)[0][:epoch]
        self.judged, self.enabled = judged, enabled
        if enabled:
            write_atomic(self.path, "".join(json.dumps(row) + "\n" for row in self.rows))
            self.board = _board(folder, epoch)

    def write(self, row: dict[str, Any]) -> None:
        """Append one epoch."""
        self.rows.append(row)
        if not self.enabled:
            return
        append(self.path, json.dumps(row) + "\n")
        with writing(self.path.parent / "tensorboard"):
            for key, value in row.items():
                key = re.sub("^test_", f"{self.judged}_", key)
                named = value if isinstance(value, dict) else {"": value}
                for name, number in named.items():
                    if number is not None:
                        self.board.add_scalar(f"{key}/{name}" if name else key, number, row["epoch"])
            self.board.flush()
        logger.info("%s", self._line(row))

    def _line(self, row: dict[str, Any]) -> str:
        """Return an epoch in less than 80 columns."""
        judged = "" if row.get("test_accuracy") is None else f", {self.judged} {row['test_accuracy']:.2%}"
        return (
            f"epoch {row['epoch']}  loss {row['loss']:.4g}  accuracy: train {row['train_accuracy']:.2%}{judged}  "
            f"{row['images_per_second']:.0f} images/s"
        )

    def close(self) -> None:
        """Close the event file."""
        if self.enabled:
            with writing(self.path.parent / "tensorboard"):
                self.board.close()


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of `metrics.jsonl`; a last line without its end, as a kill leaves it, is left out."""
    rows, damage = _whole_rows(folder / "metrics.jsonl")
    if damage:
        raise UserError(f"{folder / 'metrics.jsonl'}: {damage}; put the file back, or train the run again")
    return rows


def rows_before(folder: Path, epoch: int) -> list[dict[str, Any]]:
    """Return the rows of the epochs that a checkpoint has behind it; what comes after them is trained anew."""
    path = folder / "metrics.jsonl"
    rows, damage = _whole_rows(path)
    if len(rows) < epoch:
        raise UserError(
            f"{path} should tell of {epoch} epochs before the checkpoint, got {len(rows)}"
            f"{f' ({damage})' if damage else ''}; put the file back, or start anew under another name"
        )
    if damage:
        logger.warning("%s: %s; epochs from %d on are trained and written anew", path, damage, epoch)
    return rows[:epoch]


def _whole_rows(path: Path) -> tuple[list[dict[str, Any]], str]:
    """Return the rows up to the first that is none, and what is wrong with that one."""
    rows: list[dict[str, Any]] = []
    try:
        lines = read_lines(path)
    except OSError as error:
        return rows, str(error.strerror)
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            return rows, f"line {number} is no JSON"
        if not _is_row(row, len(rows)):
            return rows, f"line {number} is not the row of epoch {len(rows)}"
        rows.append(row)
    return rows, ""


def _is_row(row: Any, epoch: int) -> bool:
    """Whether this is what `Log.write` is given: numbers by name, and by layer."""
    if not isinstance(row, dict) or type(row.get("epoch")) is not int or row["epoch"] != epoch:
        return False
    values = [inner for value in row.values() for inner in (value.values() if isinstance(value, dict) else (value,))]
    return row.keys() >= NEEDED and all(value is None or type(value) in (int, float) for value in values)


def _board(folder: Path, epoch: int) -> "SummaryWriter":
    from torch.utils.tensorboard import SummaryWriter

    with writing(folder / "tensorboard"):
        return SummaryWriter(str(own_folder(folder, "tensorboard")), purge_step=epoch or None)


def constants(model: nn.Module) -> dict[str, dict[str, float]]:
    """Return β of every activation and γ of every batch norm that learns it, by layer (of several the largest), and σ.

    σ is what a spectral norm divides the layer's weight by, as far as training has followed it.
    """
    found: dict[str, dict[str, float]] = {}
    for kind in ("beta", "gamma"):
        found[kind] = _numbers({name: log.detach().exp().max() for name, log in learned_logs(model, kind).items()})
    with torch.no_grad():
        found["sigma"] = _numbers({name: norm.sigma(norm.given()) for name, _, norm in normalized_layers(model)})
    return found


def _numbers(values: dict[str, Tensor]) -> dict[str, float]:
    """Read all numbers at once: this waits for the device."""
    return dict(zip(values, torch.stack(list(values.values())).tolist(), strict=True)) if values else {}

"""How long is an epoch of each method? Short trainings that take turns in one process."""

import statistics
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lowcurve.experiments.grid import Cell
from lowcurve.experiments.records import MODEL_TITLES
from lowcurve.progress import track

TURNS = 3


def time_epochs(cells: list[Cell], images: int) -> tuple[str, dict[str, dict[int, dict[str, Any]]]]:
    """Train `images` images of each run in `TURNS` turns; return the setting, and median speeds by row and seed.

    Every turn goes once through all methods, so that a change of load falls on all of them.
    """
    import torch

    from lowcurve.data import load_dataset

    data = cells[0].config.data
    dataset = load_dataset(data.name, data.dir).subset(data.limit_train, data.limit_test)
    speeds: dict[str, list[float]] = {cell.row.key: [] for cell in cells}
    with TemporaryDirectory() as folder:
        turns = [(turn, cell) for turn in range(TURNS) for cell in cells]
        for turn, cell in track(turns, "timing"):
            speeds[cell.row.key].append(_speed(cell, images, Path(folder) / str(turn)))
    medians = {row: statistics.median(found) for row, found in speeds.items()}
    model = cells[0].config.model
    setting = f"{dataset.title}, {MODEL_TITLES[model.name]} of width {model.width}, {torch.get_num_threads()} thread(s)"
    return setting, {
        cell.row.key: {
            cell.seed: {
                "images_per_second": medians[cell.row.key],
                "epoch_seconds": len(dataset.train) / medians[cell.row.key],
                "relative_seconds": medians["standard"] / medians[cell.row.key] if "standard" in medians else None,
            }
        }
        for cell in cells
    }


def _speed(cell: Cell, images: int, output: Path) -> float:
    from lowcurve.training.loop import train

    data = cell.config.data.model_copy(update={"limit_train": images, "limit_test": 10})
    short = cell.config.train.model_copy(update={"epochs": 1})
    run = train(cell.config.model_copy(update={"output": output, "data": data, "train": short}))
    return float(run.metrics[0]["images_per_second"])

"""Table of epoch times: what each method costs per epoch, measured in rotation in one process."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from lowcurve.experiments.claims import Claim
from lowcurve.experiments.experiment import Column, Experiment, printed, rows
from lowcurve.progress import track

if TYPE_CHECKING:
    from lowcurve.experiments.grid import PlannedRun
    from lowcurve.experiments.presets import Preset

TURNS = 3
SECONDS = {  # on a GTX 1080 Ti ("~")
    "standard": 100,
    "softplus-wd": 100,
    "lcnn": 160,
    "gradreg": 270,
    "lcnn+gradreg": 350,
    "cure": 500,
    "adv": 500,
}


def time_epochs(runs: "Sequence[PlannedRun]", preset: "Preset") -> tuple[str, dict[str, dict[int, dict[str, Any]]]]:
    """Train some images of each run in `TURNS` turns; return the setting, and median speeds by row and seed.

    Every turn goes once through all methods, so that a change of load falls on all of them.
    """
    import torch

    from lowcurve.data import load_dataset
    from lowcurve.experiments.records import MODEL_TITLES

    data = runs[0].config.data
    dataset = load_dataset(data.name, data.dir).subset(data.limit_train, data.limit_test)
    speeds: dict[str, list[float]] = {planned.row.key: [] for planned in runs}
    with TemporaryDirectory() as folder:
        turns = [(turn, planned) for turn in range(TURNS) for planned in runs]
        for turn, planned in track(turns, "timing"):
            speeds[planned.row.key].append(_speed(planned, preset.epoch_images, Path(folder) / str(turn)))
    medians = {row: statistics.median(found) for row, found in speeds.items()}
    model = runs[0].config.model
    title = MODEL_TITLES.get(model.name, model.name)
    setting = f"{dataset.title}, {title} of width {model.width}, {torch.get_num_threads()} thread(s)"
    return setting, {
        planned.row.key: {
            planned.seed: {
                "images_per_second": medians[planned.row.key],
                "epoch_seconds": len(dataset.train) / medians[planned.row.key],
                "relative_seconds": medians["standard"] / medians[planned.row.key] if "standard" in medians else None,
            }
        }
        for planned in runs
    }


def _speed(planned: "PlannedRun", images: int, output: Path) -> float:
    from lowcurve.training.loop import train

    data = planned.config.data.model_copy(update={"limit_train": images, "limit_test": 10})
    short = planned.config.train.model_copy(update={"epochs": 1})
    run = train(planned.config.model_copy(update={"output": output, "data": data, "train": short}))
    return float(run.metrics[0]["images_per_second"])


TABLE = Experiment(
    name="table-epoch-times",
    title="Training time per epoch",
    source="Section 5.1, text",
    rows=rows(*SECONDS, ours=("relu",)),
    measurements=(),
    together=time_epochs,
    seeds=(0,),
    columns=(
        Column("epoch_seconds", "s / epoch", 2),
        Column("relative_seconds", "× standard", 2),
        Column("images_per_second", "images / s", 0, "high"),
    ),
    paper=printed(("epoch_seconds", "relative_seconds"), {row: (time, time / 100) for row, time in SECONDS.items()}),
    claims=(
        Claim("LCNN costs 1.6 times a standard epoch", "epoch_seconds[lcnn] / epoch_seconds[standard] <= 1.65"),
        Claim(
            "LCNN + GradReg costs 1.3 times a GradReg epoch",
            "epoch_seconds[lcnn+gradreg] / epoch_seconds[gradreg] <= 1.35",
        ),
        Claim(
            "LCNN + GradReg is about 1.4 times as fast as adversarial training",
            "epoch_seconds[lcnn+gradreg] / epoch_seconds[adv] <= 0.714286",
        ),
    ),
    notes=(
        "Methods take turns, so that a change of load falls on all of them; the median over the turns is shown. "
        "Seconds are scaled to an epoch of the preset's training set; the paper's are for a GTX 1080 Ti.",
    ),
)
EXPERIMENTS = (TABLE,)

"""Table of epoch times: what each method costs per epoch, measured in rotation in one process."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from lowcurve.evaluation.measurement import PER_SAMPLE, written
from lowcurve.experiments.claims import OURS, Claim
from lowcurve.experiments.experiment import Column, Experiment, Row, printed, rows
from lowcurve.progress import track

if TYPE_CHECKING:
    from lowcurve.experiments.grid import PlannedRun
    from lowcurve.experiments.presets import Preset

TURNS = 5
SECONDS = {  # on a GTX 1080 Ti ("~")
    "standard": 100,
    "softplus-wd": 100,
    "lcnn": 160,
    "gradreg": 270,
    "lcnn+gradreg": 350,
    "cure": 500,
    "adv": 500,
}
# Two plain passes in place of differentiating twice.
FINITE = Row(
    "lcnn+gradreg-finite",
    "LCNN + GradReg by finite differences",
    "lcnn+gradreg",
    {"method.gradient": "finite"},
    ours=True,
)


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
    model = runs[0].config.model
    title = MODEL_TITLES.get(model.name, model.name)
    setting = f"{dataset.title}, {title} of width {model.width}, {torch.get_num_threads()} thread(s)"
    standard = statistics.median(speeds["standard"]) if "standard" in speeds else None
    return setting, {
        planned.row.key: {planned.seed: _values(speeds[planned.row.key], len(dataset.train), standard)}
        for planned in runs
    }


def _values(speeds: Sequence[float], images: int, standard: float | None) -> dict[str, Any]:
    """Return the speed in each turn as that of a sample, and what an epoch of so many `images` takes."""
    import torch

    median = statistics.median(speeds)
    return {
        "turn_speed": statistics.fmean(speeds),
        "turn_speed_median": median,
        "train_images": images,
        "relative_seconds": standard / median if standard else None,
        PER_SAMPLE: {"turn_speed": ("turns", written(torch.tensor(speeds)))},
    }


def epoch(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the speed as the median of the turns, and the seconds of an epoch.

    >>> epoch({"turn_speed_median": 50.0, "train_images": 1000})
    {'images_per_second': 50.0, 'epoch_seconds': 20.0}
    """
    speed = values["turn_speed_median"]
    return {"images_per_second": speed, "epoch_seconds": values["train_images"] / speed}


def _speed(planned: "PlannedRun", images: int, output: Path) -> float:
    """Return images per second in a second epoch: the first one also starts kernels and singular vectors."""
    from lowcurve.training.loop import train

    data = planned.config.data.model_copy(update={"limit_train": images, "limit_test": 10})
    short = planned.config.train.model_copy(update={"epochs": 2})
    run = train(planned.config.model_copy(update={"output": output, "data": data, "train": short}))
    return float(run.metrics[-1]["images_per_second"])


TABLE = Experiment(
    name="table-epoch-times",
    title="Training time per epoch",
    source="Section 5.1, text",
    rows=(*rows(*SECONDS), FINITE, *rows(ours=("relu",))),
    measurements=(),
    together=time_epochs,
    told=False,
    derive=epoch,
    seeds=(0,),
    columns=(
        Column("epoch_seconds", "s / epoch", 2),
        Column("relative_seconds", "× standard", 2),
        Column("images_per_second", "images / s", 0, "high"),
    ),
    paper=printed(("epoch_seconds", "relative_seconds"), {row: (time, time / 100) for row, time in SECONDS.items()}),
    claims=(
        Claim(
            "LCNN costs at most about 1.6 times a standard epoch",
            "epoch_seconds[lcnn] / epoch_seconds[standard] <= 1.65",
        ),
        Claim(
            "LCNN + GradReg costs at most about 1.3 times a GradReg epoch",
            "epoch_seconds[lcnn+gradreg] / epoch_seconds[gradreg] <= 1.35",
        ),
        Claim(
            "LCNN + GradReg is about 1.4 times as fast as adversarial training",
            "epoch_seconds[lcnn+gradreg] / epoch_seconds[adv] <= 0.714286",
        ),
        Claim(
            "LCNN + GradReg by finite differences costs at most 3/4 of adversarial training",
            "epoch_seconds[lcnn+gradreg-finite] / epoch_seconds[adv] <= 0.75",
            OURS,
        ),
    ),
    notes=(
        "Methods take turns, so that a change of load falls on all of them. The second of two short epochs is timed; "
        "the median over the turns is shown, and "
        "intervals are over turns. "
        "Seconds are scaled to an epoch of the preset's training set; the paper's are for a GTX 1080 Ti.",
    ),
)
EXPERIMENTS = (TABLE,)

"""Table of epoch times: what each method costs per epoch, measured in rotation in one process."""

from lowcurve.experiments import paper
from lowcurve.experiments.claims import ratio
from lowcurve.experiments.experiment import Column, Experiment, rows

_ROWS = ("standard", "softplus-wd", "lcnn", "gradreg", "lcnn+gradreg", "cure", "adv")

TABLE = Experiment(
    name="table-epoch-times",
    title="Training time per epoch",
    source="Section 5.1, text",
    data="cifar100",
    model="resnet18",
    rows=rows(*_ROWS, ours=("relu",)),
    measurements=(),
    timed=True,
    seeds=(0,),
    columns=(
        Column("epoch_seconds", "s / epoch", 2),
        Column("relative_seconds", "× standard", 2),
        Column("images_per_second", "images / s", 0, "high"),
    ),
    paper={
        name: {**row, "relative_seconds": (row["epoch_seconds"][0] / 100, None)}
        for name, row in paper.EPOCH_SECONDS.items()
    },
    claims=(
        ratio("LCNN costs 1.6 times a standard epoch", "epoch_seconds", "lcnn", "standard", "<=", 1.65),
        ratio(
            "LCNN + GradReg costs 1.3 times a GradReg epoch",
            "epoch_seconds",
            "lcnn+gradreg",
            "gradreg",
            "<=",
            1.35,
        ),
        ratio(
            "LCNN + GradReg is about 1.4 times as fast as adversarial training",
            "epoch_seconds",
            "lcnn+gradreg",
            "adv",
            "<=",
            1 / 1.4,
        ),
    ),
    notes=(
        "Methods take turns, so that a change of load falls on all of them; the median over the turns is shown. "
        "Seconds are scaled to an epoch of the preset's training set; the paper's are for a GTX 1080 Ti.",
    ),
)

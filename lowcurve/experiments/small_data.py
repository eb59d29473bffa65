"""Study of few images: does low curvature help where there is little to learn from?"""

from collections.abc import Mapping
from typing import Any

from lowcurve.evaluation.measurement import PER_SAMPLE, Measurement, Settings, Values, written
from lowcurve.evaluation.subject import Subject
from lowcurve.experiments.claims import OURS, Claim
from lowcurve.experiments.experiment import ACCURACY, LABELS, Column, Experiment, Measured, Row
from lowcurve.experiments.geometry import GEOMETRY
from lowcurve.experiments.intervals import figures

# The share of all training images, and epochs that give about as many steps each: 500, 2,000, 5,000 and 20,000 images
# of CIFAR-10; 14, 57, 144 and 575 of the digits.
SHARES = {0.01: 400, 0.04: 200, 0.1: 80, 0.4: 20}
METHODS = ("standard", "lcnn", "lcnn+gradreg")


def measure(subject: Subject, settings: Settings) -> Values:
    """Count the training images, and ask how many of them are right."""
    hits = subject.hits("train")
    values = {"train_images": len(hits), "train_accuracy": float(hits.double().mean())}
    return values | {PER_SAMPLE: {"train_accuracy": written(hits)}}


FIT = Measurement("few-images", measure, lambda samples: {})
ROWS = {(method, share): f"{method}-{100 * share:g}" for share in SHARES for method in METHODS}


def _row(method: str, share: float) -> Row:
    epochs = SHARES[share]  # the test images are read once, at the end
    settings = {"train.epochs": epochs, "train.evaluate_every": epochs, "data.limit_train": share}
    return Row(ROWS[method, share], f"{LABELS[method]}, {100 * share:g} % of the images", method, settings, ours=True)


def _figures(measured: Measured) -> Mapping[str, Any]:
    drawn = [column for column in COLUMNS if column.key in ("accuracy", "gap", "margin_curvature_median")]
    levels = {(method, 100 * share): row for (method, share), row in ROWS.items()}
    labels = {method: LABELS[method] for method in METHODS}
    return {"curves": figures(measured, levels, labels, "Share of the training images (%)", drawn)}


COLUMNS = (
    Column("train_images", "Images", 0, "none"),
    ACCURACY,
    Column("train_accuracy", "Train accuracy (%)", 2, "none", 100.0),
    Column("gap", "Train − test (%)", 2, "low", 100.0),
    Column("curvature", "E C_f"),
    Column("margin_curvature_median", "median C_margin"),
)
TABLE = Experiment(
    name="study-small-data",
    title="Few images: accuracy and curvature",
    data="cifar10",
    rows=tuple(_row(method, share) for method, share in ROWS),
    measurements=(GEOMETRY, FIT),
    columns=COLUMNS,
    claims=tuple(
        Claim(
            f"An LCNN is more accurate with {100 * share:g} % of the images, by a point at least",
            f"accuracy[lcnn-{100 * share:g}] − accuracy[standard-{100 * share:g}] >= 1",
            OURS,
        )
        for share in SHARES
    ),
    derive=lambda values: {"gap": values["train_accuracy"] - values["accuracy"]} if "train_accuracy" in values else {},
    extend=_figures,
    notes=(
        "Every class has its share of the images, which are the same for all methods and seeds. Epochs grow as images "
        "get fewer: about as many steps each, but for the fewest.",
        "Bands of the figures are 95 % intervals of the mean over seeds (Student's t).",
    ),
    seeds=(0, 1, 2),
    apart=True,
)
EXPERIMENTS = (TABLE,)

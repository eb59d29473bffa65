"""Study of few images: does low curvature help where there is little to learn from?"""

from lowcurve.evaluation.measurement import PER_SAMPLE, Measurement, Settings, Values, written
from lowcurve.evaluation.subject import Subject
from lowcurve.experiments.claims import OURS, Claim
from lowcurve.experiments.experiment import ACCURACY, Column
from lowcurve.experiments.study import study

# The share of all training images, and epochs that give about as many steps each: 500, 2,000, 5,000 and 20,000 images
# of CIFAR-10; 14, 57, 144 and 575 of the digits.
SHARES = {0.01: 400, 0.04: 200, 0.1: 80, 0.4: 20}


def measure(subject: Subject, settings: Settings) -> Values:
    """Count the training images, and ask how many of them are right."""
    hits = subject.hits("train")
    values = {"train_images": len(hits), "train_accuracy": float(hits.double().mean())}
    return values | {PER_SAMPLE: {"train_accuracy": written(hits)}}


FIT = Measurement("few-images", measure, lambda samples: {})
TABLE = study(
    {  # the test images are read once, at the end
        share: {"train.epochs": epochs, "train.evaluate_every": epochs, "data.limit_train": share}
        for share, epochs in SHARES.items()
    },
    "of the images",
    "Share of the training images (%)",
    FIT,
    (
        Column("train_images", "Images", 0, "none"),
        ACCURACY,
        Column("train_accuracy", "Train accuracy (%)", 2, "none", 100.0),
        Column("gap", "Train − test (%)", 2, "low", 100.0),
        Column("curvature", "E C_f"),
        Column("margin_curvature_median", "median C_margin"),
    ),
    drawn=("accuracy", "gap", "margin_curvature_median"),
    notes=(
        "Every class has its share of the images, which are the same for all methods and seeds. Epochs grow as images "
        "get fewer: about as many steps each, but for the fewest.",
    ),
    name="study-small-data",
    title="Few images: accuracy and curvature",
    claims=tuple(
        Claim(
            f"An LCNN is more accurate with {100 * share:g} % of the images, by a point at least",
            f"accuracy[lcnn-{100 * share:g}] − accuracy[standard-{100 * share:g}] >= 1",
            OURS,
        )
        for share in SHARES
    ),
    derive=lambda values: {"gap": values["train_accuracy"] - values["accuracy"]} if "train_accuracy" in values else {},
)
EXPERIMENTS = (TABLE,)

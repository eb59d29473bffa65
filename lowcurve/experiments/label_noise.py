"""Study of wrong labels: does a network of low curvature learn fewer of them by heart?"""

from lowcurve.evaluation.measurement import Measurement, Settings, Values
from lowcurve.evaluation.subject import Subject
from lowcurve.experiments.claims import OURS, Claim
from lowcurve.experiments.experiment import ACCURACY, Column
from lowcurve.experiments.study import study

SHARES = (0.0, 0.2, 0.4, 0.6)
EPOCHS = 60  # enough to learn many of the wrong labels


def measure(subject: Subject, settings: Settings) -> Values:
    """Compare what the network says of its training images with the labels that it was given and the true ones."""
    import torch

    from lowcurve.data.loader import batches
    from lowcurve.training.runs import load_config

    assert subject.folder is not None
    config, dataset = load_config(subject.folder), subject.dataset
    given = dataset.mislabeled(config.data.wrong_labels, config.train.seed).train.labels
    with torch.no_grad():
        order = batches(dataset.train, settings["batch"], seed=0, epoch=0, shuffle=False)
        said = torch.cat([subject.model(x).argmax(1) for x, _ in order])
    true, wrong = dataset.train.labels, given != dataset.train.labels
    values = {"fit": said == given, "learned_right": said[~wrong] == true[~wrong]}
    if wrong.any():
        values |= {"memorized": said[wrong] == given[wrong], "corrected": said[wrong] == true[wrong]}
    return {name: hits.float().mean().item() for name, hits in values.items()}


MEMORY = Measurement("wrong-labels", measure, lambda samples: {"batch": 512})
_TRAINING = {"train.epochs": EPOCHS, "train.evaluate_every": EPOCHS}
TABLE = study(
    {share: {**_TRAINING, "data.wrong_labels": share, "data.augmentation": ()} for share in SHARES},
    "wrong",
    "Wrong training labels (%)",
    MEMORY,
    (
        ACCURACY,
        Column("fit", "Fits given labels (%)", 1, "none", 100.0),
        Column("memorized", "Wrong labels learned (%)", 1, "low", 100.0),
        Column("corrected", "Wrong labels seen through (%)", 1, "high", 100.0),
        Column("learned_right", "Right labels learned (%)", 1, "high", 100.0),
        Column("curvature", "E C_f"),
        Column("margin_curvature_median", "median C_margin"),
    ),
    drawn=("accuracy", "memorized", "margin_curvature_median"),
    notes=(
        "A wrong label is any of the other classes, drawn by the seed of the run: methods of one seed have the same.",
        "Images are not augmented: what is learned by heart is asked of the very images that were shown.",
    ),
    name="study-label-noise",
    title="Wrong labels: what is learned by heart, and what is learned",
    claims=tuple(
        claim
        for share in (20, 40, 60)
        for claim in (
            Claim(
                f"An LCNN learns fewer of {share} % wrong labels by heart, by a point at least",
                f"memorized[lcnn-{share}] − memorized[standard-{share}] <= -1",
                OURS,
            ),
            Claim(
                f"An LCNN is more accurate after {share} % wrong labels, by a point at least",
                f"accuracy[lcnn-{share}] − accuracy[standard-{share}] >= 1",
                OURS,
            ),
        )
    ),
)
EXPERIMENTS = (TABLE,)

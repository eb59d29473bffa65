"""Table of model geometry: gradient norm, Hessian norm, curvature and accuracy on test data."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lowcurve.evaluation.measurement import PER_SAMPLE, Measurement, Settings, Values, written
from lowcurve.evaluation.subject import SEED, Subject
from lowcurve.experiments.claims import OURS, Claim
from lowcurve.experiments.experiment import ACCURACY, Column, Experiment, Measured, Row, printed, rows
from lowcurve.experiments.tails import tails

MEASURES = ("gradient_norm", "hessian_norm", "curvature")


def measure(subject: Subject, settings: Settings) -> Values:
    """Measure gradients, Hessians and curvature of the loss and of the margin: means, medians, tails."""
    from lowcurve.geometry.dataset import measure

    split = settings["split"]
    functions = tuple(settings["of"])
    count, tol = settings["samples"], settings["tol"]
    found = measure(subject.model, subject.split(split), count=count, of=functions, tol=tol, seed=SEED)
    hits = subject.hits(split)
    values: Values = {"accuracy": float(hits.double().mean())}
    kept = {"accuracy": written(hits)}
    for name in found.columns:
        if name.endswith(MEASURES):
            summary = found.summary(name)
            values |= {name: summary.mean, f"{name}_median": summary.median}
            values |= {f"{name}_top_share": summary.top_share, f"{name}_not_finite": summary.not_finite}
            kept[name] = written(found[name])
    prefix = "train_" if split == "train" else ""
    return {prefix + key: value for key, value in values.items()} | {
        PER_SAMPLE: {prefix + key: text for key, text in kept.items()}
    }


GEOMETRY = Measurement(
    "geometry",
    measure,
    lambda samples: {"split": "test", "samples": samples.geometry, "of": ["loss", "margin"], "tol": 1e-2},
)
COLUMNS = (
    Column("gradient_norm", "E‖∇f‖₂"),
    Column("hessian_norm", "E‖∇²f‖₂"),
    Column("curvature", "E C_f"),
    ACCURACY,
    # Curvature has a heavy tail and grows with the scale of the logits: the mean alone misleads.
    Column("curvature_median", "median C_f"),
    Column("margin_curvature", "E C_margin"),
    Column("margin_curvature_median", "median C_margin"),
)
KINKED = ("relu",)  # rows of which no Hessian sees the bends: their low curvature is no merit


def unseen(row: str, column: str) -> bool:
    """Whether what a column measures of a row misses the kinks, where all of its curvature is.

    >>> unseen("relu", "margin_curvature"), unseen("relu", "accuracy"), unseen("lcnn", "curvature")
    (True, False, False)
    """
    return row in KINKED and any(measure in column for measure in ("curvature", "hessian"))


def spread(rows: Sequence[Row]) -> Callable[[Measured], Mapping[str, Any]]:
    """Return the figure of all tables of geometry: how curvature is spread over the test samples."""
    return tails("curvature", "normalized curvature C_f", rows, without=KINKED)


PRINTED = (*MEASURES, "accuracy")  # what the paper prints

COMMON = (  # of all tables of geometry
    Claim("LCNN at least halves curvature", "curvature[lcnn] / curvature[standard] <= 0.5"),
    Claim("LCNN loses at most 1 % accuracy", "accuracy[lcnn] − accuracy[standard] >= -1"),
    Claim("LCNN + GradReg has a lower curvature than LCNN", "curvature[lcnn+gradreg] / curvature[lcnn] <= 1"),
    Claim("LCNN + GradReg loses at most 1 % accuracy", "accuracy[lcnn+gradreg] − accuracy[standard] >= -1"),
    Claim("GradReg lowers gradient norms", "gradient_norm[gradreg] / gradient_norm[standard] <= 0.75"),
    Claim("GradReg lowers curvature too", "curvature[gradreg] / curvature[standard] <= 0.75"),
    Claim(
        "LCNN + GradReg has a lower curvature than adversarial training",
        "curvature[lcnn+gradreg] / curvature[adv] <= 1",
    ),
)
PAPER = printed(
    PRINTED,
    {
        "standard": ((19.66, 0.33), (6061.96, 968.05), (270.89, 75.04), (77.42, 0.11)),
        "lcnn": ((22.04, 1.41), (1143.62, 99.38), (69.50, 2.41), (77.30, 0.11)),
        "gradreg": ((8.86, 0.12), (776.56, 63.62), (89.47, 5.86), (77.20, 0.26)),
        "lcnn+gradreg": ((9.87, 0.27), (154.36, 0.22), (25.30, 0.09), (77.29, 0.07)),
        "cure": ((8.86, 0.01), (979.45, 14.05), (116.31, 4.58), (76.48, 0.07)),
        "softplus-wd": ((18.08, 0.05), (1052.84, 7.27), (70.39, 0.88), (77.44, 0.28)),
        "adv": ((7.99, 0.03), (501.43, 18.64), (63.79, 1.65), (76.96, 0.26)),
    },
)

# Ours leaves the layer of the logits free: normalized curvature does not see its scale, accuracy needs it.
UNIT_LAST = Row(
    "lcnn-unit-last", "LCNN, the last layer of unit norm too", "lcnn", {"model.last_layer": "unit"}, ours=True
)
ROWS = (*rows(*PAPER), UNIT_LAST, *rows(ours=("relu", "minimal")))

TABLE = Experiment(
    name="table-geometry",
    title="Model geometry: gradient norm, Hessian norm and curvature",
    source="Table 1",
    rows=ROWS,
    measurements=(GEOMETRY,),
    columns=COLUMNS,
    extend=spread(ROWS),
    paper=PAPER,
    claims=(
        *COMMON,
        Claim(
            "LCNN alone leaves gradients larger than GradReg does", "gradient_norm[lcnn] / gradient_norm[gradreg] >= 1"
        ),
        Claim(
            "LCNN + GradReg is more accurate than adversarial training", "accuracy[lcnn+gradreg] − accuracy[adv] >= 0"
        ),
        Claim("CURE costs accuracy", "accuracy[cure] − accuracy[standard] <= 0"),
        Claim("LCNN bends no more than softplus β=10", "curvature[lcnn] / curvature[softplus-wd] <= 1"),
        Claim("LCNN's curvature is at most a sixth", "curvature[lcnn] / curvature[standard] <= 0.166667", OURS),
        Claim(
            "LCNN + GradReg's curvature is at most an eighth",
            "curvature[lcnn+gradreg] / curvature[standard] <= 0.125",
            OURS,
        ),
        Claim(
            "LCNN halves the curvature of the margin, which no scale of the logits can fake",
            "margin_curvature[lcnn] / margin_curvature[standard] <= 0.5",
            OURS,
        ),
    ),
    notes=(
        "A ReLU network is linear between its kinks, where no Hessian exists: its margin has curvature 0 at almost "
        "every sample and its loss only that of the softmax. Softplus with β = 1000 shows what the kinks hide.",
    ),
)
EXPERIMENTS = (TABLE,)

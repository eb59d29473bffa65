"""Table of the train-test discrepancy: do gradients, Hessians and curvature differ between train and test data?"""

from collections.abc import Mapping
from typing import Any

from lowcurve.evaluation.measurement import Measurement
from lowcurve.experiments.claims import Claim
from lowcurve.experiments.experiment import ACCURACY, Column, Experiment, printed, rows
from lowcurve.experiments.geometry import GEOMETRY, measure

GEOMETRY_TRAIN = Measurement(
    "geometry-train",
    measure,
    lambda samples: {"split": "train", "samples": samples.geometry, "of": ["loss"], "tol": 1e-2},
)


def gaps(values: Mapping[str, Any]) -> dict[str, float]:
    """Return |test − train| / train of each measure that was taken on both splits.

    >>> gaps({"curvature": 3.0, "train_curvature": 2.0})
    {'gap_curvature': 0.5}
    """
    return {
        f"gap_{name}": abs(test - values[f"train_{name}"]) / values[f"train_{name}"]
        for name, test in values.items()
        if name.endswith(("gradient_norm", "hessian_norm", "curvature", "_median")) and values.get(f"train_{name}")
    }


PAPER = printed(  # |(test - train) / test| as printed (values above 1 included)
    ("gap_gradient_norm", "gap_hessian_norm", "gap_curvature"),
    {
        "standard": (11.75, 12.28, 0.025),
        "gradreg": (11.33, 11.22, 0.017),
        "lcnn": (19.99, 11.33, 0.129),
        "lcnn+gradreg": (21.82, 10.43, 0.146),
    },
)

TABLE = Experiment(
    name="table-discrepancy",
    title="Train-test discrepancy of the geometry",
    source="Table 3",
    rows=rows(*PAPER),
    measurements=(GEOMETRY, GEOMETRY_TRAIN),
    columns=(
        Column("gap_gradient_norm", "Δ E‖∇f‖₂", 3),
        Column("gap_hessian_norm", "Δ E‖∇²f‖₂", 3),
        Column("gap_curvature", "Δ E C_f", 3),
        Column("gap_curvature_median", "Δ median C_f", 3),
        Column("train_accuracy", "Train accuracy (%)", 2, "high", 100.0),
        ACCURACY,
    ),
    paper=PAPER,
    claims=(
        Claim("Test gradients are more than 10 times the train gradients", "gap_gradient_norm[standard] >= 9"),
        *(
            Claim(
                f"The curvature's discrepancy is two orders of magnitude below the Hessian's ({label})",
                f"gap_curvature[{row}] / gap_hessian_norm[{row}] <= 0.01",
            )
            for row, label in (("standard", "standard"), ("lcnn", "LCNN"), ("lcnn+gradreg", "LCNN + GradReg"))
        ),
        Claim(
            "The curvature's discrepancy is below the Hessian's (standard)",
            "gap_curvature[standard] / gap_hessian_norm[standard] <= 1",
        ),
    ),
    derive=gaps,
    notes=(
        "Δ = |test − train| / train. The paper prints a division by the test value, which cannot exceed 1 when "
        "test values are larger; its numbers (11.75, …) are divisions by the train value.",
        "The discrepancy comes with over-fitting: a model trained for few epochs has hardly any.",
    ),
)
EXPERIMENTS = (TABLE,)

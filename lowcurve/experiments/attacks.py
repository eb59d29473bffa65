"""Table of adversarial accuracy: ℓ₂ PGD over four radii."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from lowcurve.evaluation.measurement import PER_SAMPLE, Measurement, Settings, Values, written
from lowcurve.evaluation.subject import SEED, Subject
from lowcurve.experiments.claims import Claim
from lowcurve.experiments.experiment import CLEAN, Column, Curve, Experiment, printed, rows
from lowcurve.experiments.presets import PRESETS

if TYPE_CHECKING:
    from lowcurve.attacks.table import Evaluation

RADII = (0.05, 0.1, 0.15, 0.2)


def measure(subject: Subject, settings: Settings) -> Values:
    """Attack by PGD at each radius; the clean accuracy is that of the same samples."""
    from lowcurve.attacks.evaluate import evaluate

    radii = settings["radii"]
    chosen = subject.split().subset(settings["samples"], SEED)
    found = evaluate(subject.model, chosen, ("pgd",), radii, steps={"pgd": settings["steps"]}, seed=SEED)
    cells = {"accuracy": ("clean", 0.0), **{f"pgd_{radius:g}": ("pgd", radius) for radius in radii}}
    return {
        **accuracies(found, cells),
        "pgd_radii": [0.0, *radii],
        "pgd_curve": [100 * cell.accuracy for cell in found.curve("pgd")],
        "flags": list(found.flags),
    }


def accuracies(found: "Evaluation", cells: Mapping[str, tuple[str, float]]) -> Values:
    """Return the accuracy in each of the named `cells` (attack, radius), and which samples it counts."""
    import torch

    survived = {name: torch.tensor(list(found.survivors[cell].values())) for name, cell in cells.items()}
    return {
        **{name: found.accuracy(*cell) for name, cell in cells.items()},
        PER_SAMPLE: {name: written(hits) for name, hits in survived.items()},
    }


PGD = Measurement(
    "pgd",
    measure,
    lambda samples: {"samples": samples.pgd, "steps": samples.pgd_steps, "radii": list(RADII)},
)
CURVE = Curve("pgd_radii", "pgd_curve", "ℓ₂ radius of the attack", "accuracy (%)")
PAPER = printed(
    ("accuracy", *(f"pgd_{radius:g}" for radius in RADII)),
    {
        "standard": ((77.42, 0.10), (59.97, 0.11), (37.55, 0.13), (23.41, 0.08), (16.11, 0.21)),
        "lcnn": ((77.16, 0.07), (61.17, 0.53), (39.72, 0.17), (25.60, 0.32), (17.66, 0.18)),
        "gradreg": ((77.20, 0.26), (71.90, 0.11), (61.06, 0.03), (49.19, 0.12), (38.09, 0.47)),
        "lcnn+gradreg": ((77.29, 0.26), (72.68, 0.52), (63.36, 0.39), (52.96, 0.76), (42.70, 0.77)),
        "cure": ((76.48, 0.07), (71.39, 0.12), (61.28, 0.32), (49.60, 0.09), (39.04, 0.16)),
        "softplus-wd": ((77.44, 0.28), (60.86, 0.36), (38.04, 0.43), (23.85, 0.33), (16.20, 0.01)),
        "adv": ((76.96, 0.26), (72.76, 0.15), (64.70, 0.20), (54.80, 0.25), (44.98, 0.57)),
    },
)

TABLE = Experiment(
    name="table-attacks",
    title="Accuracy under ℓ₂ PGD",
    source="Table 2",
    rows=rows(*PAPER, ours=("relu",)),
    measurements=(PGD,),
    columns=(CLEAN, *(Column(f"pgd_{radius:g}", f"ε = {radius:g}", 2, "high", 100.0) for radius in RADII)),
    curves=(CURVE,),
    paper=PAPER,
    claims=(
        *(
            Claim(
                f"LCNN + GradReg is within 3 points of adversarial training at ε = {radius:g}",
                f"pgd_{radius:g}[lcnn+gradreg] − pgd_{radius:g}[adv] >= -3",
            )
            for radius in RADII
        ),
        Claim("LCNN adds robustness to GradReg at ε = 0.2", "pgd_0.2[lcnn+gradreg] − pgd_0.2[gradreg] >= 0"),
        Claim("LCNN alone is slightly more robust at ε = 0.2", "pgd_0.2[lcnn] − pgd_0.2[standard] >= 0"),
        Claim(
            "LCNN + GradReg is at least as accurate on clean data as adversarial training",
            "accuracy[lcnn+gradreg] − accuracy[adv] >= 0",
        ),
    ),
    notes=(
        "Clean accuracy is that of the attacked samples: "
        + ", ".join(f"{preset.samples.pgd:,} ({name})" for name, preset in PRESETS.items())
        + ".",
    ),
)
EXPERIMENTS = (TABLE,)

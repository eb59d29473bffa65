"""Table of adversarial accuracy: APGD-T and Square at one radius."""

from lowcurve.evaluation.measurement import Measurement, Settings, Values
from lowcurve.evaluation.subject import SEED, Subject
from lowcurve.experiments.claims import Claim
from lowcurve.experiments.experiment import ACCURACY, Column, Experiment, printed, rows

RADIUS = 0.15  # the paper prints none; its APGD-T accuracies lie just below its PGD accuracies at 0.15


def measure(subject: Subject, settings: Settings) -> Values:
    """Attack by APGD-T and Square at one radius, each on its own."""
    from lowcurve.attacks.evaluate import evaluate

    radius = settings["radius"]
    chosen = subject.split().subset(settings["samples"], SEED)
    steps = {"apgd-t": settings["apgd_steps"], "square": settings["square_queries"]}
    found = evaluate(subject.model, chosen, tuple(steps), (radius,), steps=steps, seed=SEED)
    return {
        "accuracy": found.accuracy("clean", 0.0),
        "apgd_t": found.accuracy("apgd-t", radius),
        "square": found.accuracy("square", radius),
        "worst": found.accuracy("worst", radius),
        "flags": list(found.flags),
    }


AUTOATTACK = Measurement(
    "autoattack",
    measure,
    lambda samples: {
        "samples": samples.strong,
        "radius": RADIUS,
        "apgd_steps": samples.apgd_steps,
        "square_queries": samples.square_queries,
    },
)
PAPER = printed(
    ("apgd_t", "square", "accuracy"),
    {
        "standard": (22.122, 52.874, 76.721),
        "lcnn": (23.709, 52.179, 76.602),
        "gradreg": (50.294, 64.678, 76.394),
        "lcnn+gradreg": (52.477, 64.678, 76.622),
        "cure": (50.096, 63.488, 75.928),
        "softplus-wd": (23.907, 53.766, 76.622),
        "adv": (55.155, 66.861, 75.521),
        "cure+gradreg": (60.810, 67.357, 74.192),
        "lcnn+gradreg+adv": (59.222, 66.861, 75.382),
    },
)

TABLE = Experiment(
    name="table-autoattack",
    title=f"Accuracy under APGD-T and Square (ℓ₂, ε = {RADIUS:g})",
    source="Appendix, RobustBench / AutoAttack",
    rows=rows(*PAPER),
    measurements=(AUTOATTACK,),
    columns=(
        Column("apgd_t", "APGD-T (%)", 2, "high", 100.0),
        Column("square", "Square (%)", 2, "high", 100.0),
        ACCURACY,
    ),
    paper=PAPER,
    claims=(
        Claim("On par with adversarial training under APGD-T", "apgd_t[lcnn+gradreg] − apgd_t[adv] >= -3"),
        Claim("On par with adversarial training under Square", "square[lcnn+gradreg] − square[adv] >= -3"),
        Claim("Adversarial training on top adds robustness", "apgd_t[lcnn+gradreg+adv] − apgd_t[lcnn+gradreg] >= 0"),
        Claim("… at the cost of accuracy", "accuracy[lcnn+gradreg+adv] − accuracy[lcnn+gradreg] <= 0"),
        Claim("GradReg on top of CURE adds robustness", "apgd_t[cure+gradreg] − apgd_t[cure] >= 0"),
        Claim("… at the cost of accuracy", "accuracy[cure+gradreg] − accuracy[cure] <= 0"),
    ),
    notes=(f"The paper prints no radius for this table; {RADIUS:g} is our reading (APGD-T just below PGD at 0.15).",),
)
EXPERIMENTS = (TABLE,)

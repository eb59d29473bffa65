"""Table of adversarial accuracy: APGD-T, Square and the whole of AutoAttack's standard suite at one radius."""

from lowcurve.evaluation.measurement import PER_SAMPLE, Measurement, Settings, Values, written
from lowcurve.evaluation.subject import SEED, Subject
from lowcurve.experiments.attacks import accuracies
from lowcurve.experiments.claims import OURS, Claim
from lowcurve.experiments.experiment import CLEAN, Column, Experiment, printed, rows
from lowcurve.experiments.presets import PRESETS

RADIUS = 0.15  # the paper prints none; its APGD-T accuracies lie just below its PGD accuracies at 0.15
REST = ("apgd-ce", "fab-t")  # of the suite, beside the two that the paper prints


def measure(subject: Subject, settings: Settings) -> Values:
    """Attack by APGD-T and Square, each on all samples, then by the rest of AutoAttack's standard suite.

    APGD-CE and FAB-T are tried on what the first two leave: the suite counts a sample that any of its attacks breaks.
    """
    import torch

    from lowcurve.attacks.evaluate import evaluate
    from lowcurve.data import Split

    radius = settings["radius"]
    chosen = subject.split().subset(settings["samples"], SEED)
    steps = {"apgd-t": settings["apgd_steps"], "square": settings["square_queries"]}
    found = evaluate(subject.model, chosen, tuple(steps), (radius,), steps=steps, seed=SEED)
    cells = {"accuracy": ("clean", 0.0), "apgd_t": ("apgd-t", radius), "square": ("square", radius)}
    values = {**accuracies(found, cells), "flags": list(found.flags)}
    suite = torch.tensor(list(found.survivors["worst", radius].values()))
    if left := suite.nonzero().flatten().tolist():
        survivors = Split(chosen.images[left], chosen.labels[left])
        steps = dict.fromkeys(settings["rest"], settings["apgd_steps"])
        rest = evaluate(subject.model, survivors, tuple(steps), (radius,), steps=steps, seed=SEED)
        suite[left] = torch.tensor(list(rest.survivors["worst", radius].values()))
    values["suite"], values[PER_SAMPLE]["suite"] = float(suite.double().mean()), written(suite)
    return values


AUTOATTACK = Measurement(
    "autoattack",
    measure,
    lambda samples: {
        "samples": samples.strong,
        "radius": RADIUS,
        "apgd_steps": samples.apgd_steps,
        "square_queries": samples.square_queries,
        "rest": list(REST),
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
_BUDGETS = "; ".join(
    f"{name} {preset.samples.apgd_steps} and {preset.samples.square_queries:,}, on {preset.samples.strong:,} samples"
    for name, preset in PRESETS.items()
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
        Column("suite", "whole suite (%)", 2, "high", 100.0),
        CLEAN,
    ),
    paper=PAPER,
    claims=(
        Claim("On par with adversarial training under APGD-T", "apgd_t[lcnn+gradreg] − apgd_t[adv] >= -3"),
        Claim("On par with adversarial training under Square", "square[lcnn+gradreg] − square[adv] >= -3"),
        Claim("On par with adversarial training under the whole suite", "suite[lcnn+gradreg] − suite[adv] >= -3", OURS),
        Claim("Adversarial training on top adds robustness", "apgd_t[lcnn+gradreg+adv] − apgd_t[lcnn+gradreg] >= 0"),
        Claim("Adversarial training on top costs accuracy", "accuracy[lcnn+gradreg+adv] − accuracy[lcnn+gradreg] <= 0"),
        Claim("GradReg on top of CURE adds robustness", "apgd_t[cure+gradreg] − apgd_t[cure] >= 0"),
        Claim("GradReg on top of CURE costs accuracy", "accuracy[cure+gradreg] − accuracy[cure] <= 0"),
    ),
    notes=(
        "The whole suite is AutoAttack's standard: APGD-CE, APGD-T, FAB-T and Square; a sample counts as broken where "
        "any of them breaks it. It takes 100 steps and 5,000 queries of Square; our presets: "
        f"{_BUDGETS}.",
        f"The paper prints no radius for this table; {RADIUS:g} is our reading (APGD-T just below PGD at 0.15).",
    ),
)
EXPERIMENTS = (TABLE,)

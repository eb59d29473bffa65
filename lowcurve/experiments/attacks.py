"""Tables of adversarial accuracy: ℓ₂ PGD over four radii, and APGD-T and Square at one."""

from lowcurve.experiments import paper
from lowcurve.experiments.claims import difference
from lowcurve.experiments.experiment import ACCURACY, Column, Curve, Experiment, rows

PGD_RADII = (0.05, 0.1, 0.15, 0.2)
STRONG_RADIUS = 0.15  # the paper prints none; its APGD-T accuracies lie just below its PGD accuracies at 0.15


def _attacked(key: str, label: str) -> Column:
    return Column(key, label, 2, "high", 100.0)


PGD = Experiment(
    name="table-attacks",
    title="Accuracy under ℓ₂ PGD",
    source="Table 2",
    data="cifar100",
    model="resnet18",
    rows=rows(*paper.ATTACKS, ours=("relu",)),
    measurements=("pgd",),
    columns=(ACCURACY, *(_attacked(f"pgd_{radius:g}", f"ε = {radius:g}") for radius in PGD_RADII)),
    curves=(Curve("pgd_radii", "pgd_curve", "ℓ₂ radius of the attack", "accuracy (%)"),),
    paper=paper.ATTACKS,
    claims=(
        *(
            difference(
                f"LCNN + GradReg is within 3 points of adversarial training at ε = {radius:g}",
                f"pgd_{radius:g}",
                "lcnn+gradreg",
                "adv",
                ">=",
                -3.0,
            )
            for radius in PGD_RADII
        ),
        difference("LCNN adds robustness to GradReg at ε = 0.2", "pgd_0.2", "lcnn+gradreg", "gradreg", ">=", 0.0),
        difference("LCNN alone is slightly more robust at ε = 0.2", "pgd_0.2", "lcnn", "standard", ">=", 0.0),
        difference(
            "LCNN + GradReg is at least as accurate on clean data as adversarial training",
            "accuracy",
            "lcnn+gradreg",
            "adv",
            ">=",
            0.0,
        ),
    ),
)

AUTOATTACK = Experiment(
    name="table-autoattack",
    title=f"Accuracy under APGD-T and Square (ℓ₂, ε = {STRONG_RADIUS:g})",
    source="Appendix, RobustBench / AutoAttack",
    data="cifar100",
    model="resnet18",
    rows=rows(*paper.AUTOATTACK),
    measurements=("autoattack",),
    columns=(_attacked("apgd_t", "APGD-T (%)"), _attacked("square", "Square (%)"), ACCURACY),
    paper=paper.AUTOATTACK,
    claims=(
        difference("On par with adversarial training under APGD-T", "apgd_t", "lcnn+gradreg", "adv", ">=", -3.0),
        difference("On par with adversarial training under Square", "square", "lcnn+gradreg", "adv", ">=", -3.0),
        difference(
            "Adversarial training on top adds robustness",
            "apgd_t",
            "lcnn+gradreg+adv",
            "lcnn+gradreg",
            ">=",
            0.0,
        ),
        difference("… at the cost of accuracy", "accuracy", "lcnn+gradreg+adv", "lcnn+gradreg", "<=", 0.0),
        difference("GradReg on top of CURE adds robustness", "apgd_t", "cure+gradreg", "cure", ">=", 0.0),
        difference("… at the cost of accuracy", "accuracy", "cure+gradreg", "cure", "<=", 0.0),
    ),
    notes=(
        f"The paper prints no radius for this table; {STRONG_RADIUS:g} is our reading (APGD-T just below PGD at 0.15).",
    ),
)

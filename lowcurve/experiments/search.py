"""The search behind a preset's λ, by the paper's rule: the largest that does not hurt accuracy.

Settings are chosen on samples held out of the training set; the test samples, which the tables report, stay unread.
"""

from lowcurve.experiments.claims import OURS, Claim
from lowcurve.experiments.experiment import LABELS, Experiment, Row
from lowcurve.experiments.geometry import COLUMNS, GEOMETRY

# (λβ, λγ): the paper's, three, six and ten times as much; more on γ alone; and the defaults of the released code.
CURVATURE = (
    (1e-4, 1e-5),
    (3e-4, 3e-5),
    (6e-4, 6e-5),
    (1e-3, 1e-4),
    (3e-4, 1e-3),
    (3e-4, 5e-3),
    (1e-2, 1e-2),
)
# 6.1e-3 is the paper's λ_grad = 1e-3 in per-sample units.
GRADIENT = (6.1e-4, 6.1e-3, 6.1e-2)
HELD_OUT = {"data.validation": 0.1}
LOSS = 1.0  # points of accuracy that count as hurt

_TRIED = (
    *(
        Row(f"lcnn-{beta:g}-{gamma:g}", f"LCNN, λβ = {beta:g}, λγ = {gamma:g}", "lcnn",
            {"method.lambda_beta": beta, "method.lambda_gamma": gamma, **HELD_OUT}, ours=True)
        for beta, gamma in CURVATURE
    ),
    *(
        Row(f"gradreg-{weight:g}", f"GradReg, λ = {weight:g}", "gradreg",
            {"method.lambda_grad": weight, **HELD_OUT}, ours=True)
        for weight in GRADIENT
    ),
)  # fmt: skip

TABLE = Experiment(
    name="search-lambda",
    title="Search for λ: the largest that does not hurt accuracy",
    source="Appendix, experimental settings (a coarse grid search)",
    rows=(Row("standard", LABELS["standard"], "standard", HELD_OUT), *_TRIED),
    measurements=(GEOMETRY,),
    columns=COLUMNS,
    claims=tuple(
        Claim(f"{row.label} does not hurt accuracy", f"accuracy[{row.key}] − accuracy[standard] >= {-LOSS:g}", OURS)
        for row in _TRIED
    ),
)
EXPERIMENTS = (TABLE,)

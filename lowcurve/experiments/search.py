"""The search behind a preset's λ, by the paper's rule: the largest that does not hurt accuracy."""

from lowcurve.experiments.claims import difference
from lowcurve.experiments.experiment import Experiment, Row, rows
from lowcurve.experiments.geometry import GEOMETRY_COLUMNS, ROBUST_COLUMNS

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
LOSS = 1.0  # points of accuracy that count as hurt

_LCNN = tuple(
    Row(f"lcnn-{beta:g}-{gamma:g}", f"LCNN, λβ = {beta:g}, λγ = {gamma:g}", "lcnn",
        {"method.lambda_beta": beta, "method.lambda_gamma": gamma}, ours=True)
    for beta, gamma in CURVATURE
)  # fmt: skip
_GRADREG = tuple(
    Row(f"gradreg-{weight:g}", f"GradReg, λ = {weight:g}", "gradreg", {"method.lambda_grad": weight}, ours=True)
    for weight in GRADIENT
)

SEARCH = Experiment(
    name="search-lambda",
    title="Search for λ: the largest that does not hurt accuracy",
    source="Appendix, experimental settings (a coarse grid search)",
    data="cifar100",
    model="resnet18",
    rows=(*rows("standard"), *_LCNN, *_GRADREG),
    measurements=("geometry",),
    columns=GEOMETRY_COLUMNS + ROBUST_COLUMNS,
    claims=tuple(
        difference(
            f"{row.label} does not hurt accuracy", "accuracy", row.key, "standard", ">=", -LOSS, source="project"
        )
        for row in (*_LCNN, *_GRADREG)
    ),
)

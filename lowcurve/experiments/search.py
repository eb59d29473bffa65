"""The searches behind a preset's λ and β₀ and CURE's step, by the paper's rule: the most that hurts no accuracy.

Settings are chosen on samples held out of the training set; the test samples, which the tables report, stay unread.
"""

from lowcurve.experiments.claims import OURS, Claim
from lowcurve.experiments.experiment import METHOD_LABELS, Experiment, Row
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
# (β₀, λβ): the paper's, weaker penalties, sharper starts. By itself λβ takes 1/β to 1/β₀ + λβ Σ lr / (1 − momentum).
SHARPNESS = ((5.0, 1e-4), (5.0, 1e-5), (20.0, 3e-5), (20.0, 3e-6), (50.0, 1e-6))
# 6.1e-3 is the paper's λ_grad = 1e-3 in per-sample units.
GRADIENT = (6.1e-4, 6.1e-3, 6.1e-2)
# (h, λ) of CURE, of which the paper gives neither.
STEPS = ((0.5, 4e-4), (0.5, 4e-3), (0.5, 4e-2), (1.5, 4e-3), (1.5, 4e-2), (0.1, 4e-2))
HELD_OUT = {"data.validation": 0.1}
LOSS = 1.0  # points of accuracy that count as hurt

_LAMBDA = (
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

_BETA = tuple(
    Row(f"lcnn-{start:g}-{weight:g}", f"LCNN, β₀ = {start:g}, λβ = {weight:g}", "lcnn",
        {"method.init_beta": start, "method.lambda_beta": weight, **HELD_OUT}, ours=True)
    for start, weight in SHARPNESS
)  # fmt: skip

_CURE = tuple(
    Row(f"cure-{step:g}-{weight:g}", f"CURE, h = {step:g}, λ = {weight:g}", "cure",
        {"method.cure_step": step, "method.lambda_cure": weight, **HELD_OUT}, ours=True)
    for step, weight in STEPS
)  # fmt: skip


def _search(name: str, title: str, source: str, tried: tuple[Row, ...]) -> Experiment:
    """Return the table that sets what was tried beside the standard network, all on held-out samples."""
    return Experiment(
        name=name,
        title=title,
        source=source,
        rows=(Row("standard", METHOD_LABELS["standard"], "standard", HELD_OUT), *tried),
        measurements=(GEOMETRY,),
        columns=COLUMNS,
        told=False,
        claims=tuple(
            Claim(f"{row.label} does not hurt accuracy", f"accuracy[{row.key}] − accuracy[standard] >= {-LOSS:g}", OURS)
            for row in tried
        ),
    )


LAMBDA = _search(
    "search-lambda",
    "Search for λ: the largest that does not hurt accuracy",
    "Appendix, experimental settings (a coarse grid search)",
    _LAMBDA,
)
BETA = _search(
    "search-beta",
    "Search for β₀ and λβ: the smoothest activation that does not hurt accuracy",
    "Not in the paper, which starts at β₀ = 5",
    _BETA,
)
CURE = _search(
    "search-cure",
    "Search for CURE's step h and its λ: the largest penalty that does not hurt accuracy",
    "Not in the paper, which gives neither",
    _CURE,
)
EXPERIMENTS = (LAMBDA, BETA, CURE)

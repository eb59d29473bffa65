"""Table of ablations: which change lowers curvature, and what do the starting β₀ = 5 and the last layer do alone?"""

from lowcurve.experiments.claims import OURS, Claim
from lowcurve.experiments.experiment import Experiment, Row, printed, rows
from lowcurve.experiments.geometry import COLUMNS, GEOMETRY, UNIT_LAST

NO_PENALTY = Row(
    "lcnn-no-penalty",
    "LCNN, λβ = λγ = 0 (β₀ = 5 alone)",
    "lcnn",
    {"method.lambda_beta": 0.0, "method.lambda_gamma": 0.0},
    ours=True,
)
PAPER = printed(
    ("curvature", "hessian_norm", "gradient_norm", "accuracy"),
    {
        "convsn-only": (358.86, 8380.55, 23.92, 77.55),
        "gbn-only": (65.78, 1086.95, 20.86, 77.33),
        "csoftplus-only": (57.49, 734.05, 16.99, 77.31),
        "standard": (270.89, 6061.96, 19.66, 77.42),
        "lcnn": (69.40, 1143.62, 22.04, 77.30),
    },
)

TABLE = Experiment(
    name="table-ablations",
    title="Ablations: one change at a time",
    source="Appendix, ablation experiments",
    rows=(*rows(*PAPER), UNIT_LAST, NO_PENALTY),
    measurements=(GEOMETRY,),
    columns=COLUMNS,
    paper=PAPER,
    claims=(
        Claim("Spectral norm alone does not lower curvature", "curvature[convsn-only] / curvature[standard] >= 0.8"),
        Claim("γ-BN alone halves curvature", "curvature[gbn-only] / curvature[standard] <= 0.5"),
        Claim("Centered softplus alone halves curvature", "curvature[csoftplus-only] / curvature[standard] <= 0.5"),
        Claim("γ-BN alone does almost as well as LCNN", "curvature[gbn-only] / curvature[lcnn] <= 1.25"),
        Claim(
            "Centered softplus alone does almost as well as LCNN",
            "curvature[csoftplus-only] / curvature[lcnn] <= 1.25",
        ),
        Claim(
            "The penalty lowers curvature below what β₀ = 5 gives by itself",
            "curvature[lcnn] / curvature[lcnn-no-penalty] <= 0.9",
            OURS,
        ),
        Claim(
            "β₀ = 5 alone, without a penalty, already halves curvature",
            "curvature[lcnn-no-penalty] / curvature[standard] <= 0.5",
            OURS,
        ),
        Claim(
            "A last layer of unit norm does not lower curvature further",
            "curvature[lcnn] / curvature[lcnn-unit-last] <= 1",
            OURS,
        ),
        Claim(
            "A last layer of unit norm costs accuracy",
            "accuracy[lcnn] − accuracy[lcnn-unit-last] >= 0",
            OURS,
        ),
    ),
)
EXPERIMENTS = (TABLE,)

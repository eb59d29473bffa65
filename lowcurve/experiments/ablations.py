"""Table of ablations: which change lowers curvature, and what do the starting β₀ = 5 and the last layer do alone?"""

from lowcurve.experiments import paper
from lowcurve.experiments.claims import difference, ratio
from lowcurve.experiments.experiment import Experiment, Row, rows
from lowcurve.experiments.geometry import GEOMETRY_COLUMNS, ROBUST_COLUMNS

NO_PENALTY = Row(
    "lcnn-no-penalty",
    "LCNN, λβ = λγ = 0 (β₀ = 5 alone)",
    "lcnn",
    {"method.lambda_beta": 0.0, "method.lambda_gamma": 0.0},
    ours=True,
)

FREE_LAST = Row(
    "lcnn-free-last",
    "LCNN, last layer not normalized",
    "lcnn",
    {"model.skip": ("13",)},  # the Linear layer of ResNet-18
    ours=True,
)

TABLE = Experiment(
    name="table-ablations",
    title="Ablations: one change at a time",
    source="Appendix, ablation experiments",
    data="cifar100",
    model="resnet18",
    rows=(*rows(*paper.ABLATIONS), NO_PENALTY, FREE_LAST),
    measurements=("geometry",),
    columns=GEOMETRY_COLUMNS + ROBUST_COLUMNS,
    paper=paper.ABLATIONS,
    claims=(
        ratio("Spectral norm alone does not lower curvature", "curvature", "convsn-only", "standard", ">=", 0.8),
        ratio("γ-BN alone halves curvature", "curvature", "gbn-only", "standard", "<=", 0.5),
        ratio("Centered softplus alone halves curvature", "curvature", "csoftplus-only", "standard", "<=", 0.5),
        ratio("γ-BN alone does almost as well as LCNN", "curvature", "gbn-only", "lcnn", "<=", 1.25),
        ratio(
            "Centered softplus alone does almost as well as LCNN",
            "curvature",
            "csoftplus-only",
            "lcnn",
            "<=",
            1.25,
        ),
        ratio(
            "The penalty lowers curvature below what β₀ = 5 gives by itself",
            "curvature",
            "lcnn",
            "lcnn-no-penalty",
            "<=",
            0.9,
            source="project",
        ),
        ratio(
            "β₀ = 5 alone, without a penalty, already halves curvature",
            "curvature",
            "lcnn-no-penalty",
            "standard",
            "<=",
            0.5,
            source="project",
        ),
        ratio(
            "LCNN halves curvature without spectral norm of the last layer too",
            "curvature",
            "lcnn-free-last",
            "standard",
            "<=",
            0.5,
            source="project",
        ),
        difference(
            "LCNN with a free last layer loses at most 1 % accuracy",
            "accuracy",
            "lcnn-free-last",
            "standard",
            ">=",
            -1.0,
            source="project",
        ),
    ),
)

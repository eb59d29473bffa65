"""Tables of model geometry: gradient norm, Hessian norm, curvature and accuracy on test data, four settings."""

from lowcurve.experiments import paper
from lowcurve.experiments.claims import Claim, difference, ratio
from lowcurve.experiments.experiment import ACCURACY, Column, Experiment, rows

GEOMETRY_COLUMNS = (
    Column("gradient_norm", "E‖∇f‖₂"),
    Column("hessian_norm", "E‖∇²f‖₂"),
    Column("curvature", "E C_f"),
    ACCURACY,
)
# Curvature has a heavy tail and grows with the scale of the logits: the mean alone misleads.
ROBUST_COLUMNS = (
    Column("curvature_median", "median C_f"),
    Column("margin_curvature", "E C_margin"),
    Column("margin_curvature_median", "median C_margin"),
)

_HALVES = ratio("LCNN at least halves curvature", "curvature", "lcnn", "standard", "<=", 0.5)
_KEEPS = difference("LCNN loses at most 1 % accuracy", "accuracy", "lcnn", "standard", ">=", -1.0)
_BOTH = ratio("LCNN + GradReg has a lower curvature than LCNN", "curvature", "lcnn+gradreg", "lcnn", "<=", 1.0)
_BOTH_KEEPS = difference(
    "LCNN + GradReg loses at most 1 % accuracy", "accuracy", "lcnn+gradreg", "standard", ">=", -1.0
)
_GRADREG = ratio("GradReg lowers gradient norms", "gradient_norm", "gradreg", "standard", "<=", 0.75)
_GRADREG_BENDS = ratio("GradReg lowers curvature too", "curvature", "gradreg", "standard", "<=", 0.75)
_ADV = ratio(
    "LCNN + GradReg has a lower curvature than adversarial training",
    "curvature",
    "lcnn+gradreg",
    "adv",
    "<=",
    1.0,
)
COMMON = (_HALVES, _KEEPS, _BOTH, _BOTH_KEEPS, _GRADREG, _GRADREG_BENDS, _ADV)

_TARGETS: tuple[Claim, ...] = (
    ratio("LCNN's curvature is at most a sixth", "curvature", "lcnn", "standard", "<=", 1 / 6, source="project"),
    ratio(
        "LCNN + GradReg's curvature is at most an eighth",
        "curvature",
        "lcnn+gradreg",
        "standard",
        "<=",
        1 / 8,
        source="project",
    ),
    ratio(
        "LCNN halves the curvature of the margin, which no scale of the logits can fake",
        "margin_curvature",
        "lcnn",
        "standard",
        "<=",
        0.5,
        source="project",
    ),
)

TABLE = Experiment(
    name="table-geometry",
    title="Model geometry: gradient norm, Hessian norm and curvature",
    source="Table 1",
    data="cifar100",
    model="resnet18",
    rows=rows(*paper.GEOMETRY, ours=("relu", "minimal")),
    measurements=("geometry",),
    columns=GEOMETRY_COLUMNS + ROBUST_COLUMNS,
    paper=paper.GEOMETRY,
    claims=(
        *COMMON,
        ratio("LCNN leaves gradients unpenalized", "gradient_norm", "lcnn", "gradreg", ">=", 1.0),
        difference(
            "LCNN + GradReg is more accurate than adversarial training",
            "accuracy",
            "lcnn+gradreg",
            "adv",
            ">=",
            0.0,
        ),
        difference("CURE costs accuracy", "accuracy", "cure", "standard", "<=", 0.0),
        ratio("LCNN bends no more than softplus β=10", "curvature", "lcnn", "softplus-wd", "<=", 1.0),
        *_TARGETS,
    ),
    notes=(
        "A ReLU network is linear between its kinks, where no Hessian exists: its margin has curvature 0 at almost "
        "every sample and its loss only that of the softmax. Softplus with β = 1000 shows what the kinks hide.",
    ),
)


def _appendix(data: str, model: str, title: str, numbers: dict[str, paper.Row]) -> Experiment:
    return Experiment(
        name=f"table-geometry-{data}-{model}",
        title=f"Model geometry, {title}",
        source="Appendix, additional evaluations",
        data=data,
        model=model,
        rows=rows(*numbers),
        measurements=("geometry",),
        columns=GEOMETRY_COLUMNS + ROBUST_COLUMNS,
        paper=numbers,
        claims=COMMON,
    )


APPENDIX = (
    _appendix("svhn", "vgg11", "SVHN and VGG-11", paper.GEOMETRY_SVHN_VGG11),
    _appendix("svhn", "resnet18", "SVHN and ResNet-18", paper.GEOMETRY_SVHN_RESNET18),
    _appendix("cifar100", "vgg11", "CIFAR-100 and VGG-11", paper.GEOMETRY_CIFAR100_VGG11),
)

"""Tables of model geometry in three more settings."""

from collections.abc import Mapping, Sequence

from lowcurve.experiments.experiment import Experiment, printed, rows
from lowcurve.experiments.geometry import COLUMNS, COMMON, GEOMETRY, PRINTED, spread


def _table(data: str, model: str, title: str, numbers: Mapping[str, Sequence[float]]) -> Experiment:
    return Experiment(
        name=f"table-geometry-{data}-{model}",
        title=f"Model geometry, {title}",
        source="Appendix, additional evaluations",
        data=data,
        model=model,
        rows=rows(*numbers),
        measurements=(GEOMETRY,),
        columns=COLUMNS,
        extend=spread(rows(*numbers)),
        paper=printed(PRINTED, numbers),
        claims=COMMON,
    )


SVHN_VGG11 = {
    "standard": (2.87, 158.29, 54.24, 96.01),
    "lcnn": (4.04, 83.34, 30.05, 95.61),
    "gradreg": (1.85, 57.52, 33.34, 96.03),
    "lcnn+gradreg": (2.02, 25.54, 17.06, 96.23),
    "adv": (1.25, 27.64, 24.23, 96.37),
}
SVHN_RESNET18 = {
    "standard": (2.64, 204.38, 78.22, 96.41),
    "lcnn": (2.91, 77.78, 25.36, 96.35),
    "gradreg": (1.63, 68.22, 39.55, 96.57),
    "lcnn+gradreg": (1.69, 31.69, 15.28, 96.53),
    "adv": (1.05, 22.96, 24.48, 96.64),
}
CIFAR100_VGG11 = {
    "standard": (17.07, 1482.16, 85.81, 73.33),
    "lcnn": (15.88, 282.06, 41.14, 73.76),
    "gradreg": (10.64, 534.71, 48.26, 72.65),
    "lcnn+gradreg": (9.81, 105.07, 24.48, 73.01),
    "adv": (6.20, 166.73, 27.37, 71.13),
}

EXPERIMENTS = (
    _table("svhn", "vgg11", "SVHN and VGG-11", SVHN_VGG11),
    _table("svhn", "resnet18", "SVHN and ResNet-18", SVHN_RESNET18),
    _table("cifar100", "vgg11", "CIFAR-100 and VGG-11", CIFAR100_VGG11),
)

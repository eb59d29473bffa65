"""What the paper printed: the numbers of its tables, as data, with the place each was read from.

Source: Srinivas, Matoba, Lakkaraju and Fleuret, "Efficient Training of Low-Curvature Neural Networks",
NeurIPS 2022. A number is `(mean, std)` over two runs where the paper prints a spread, else `(value, None)`.
Accuracies are percentages; radii and gradients are in [0, 1] pixels. Keys: table, method, column.
"""

from collections.abc import Mapping

Number = tuple[float, float | None]
Row = Mapping[str, Number]

_GEOMETRY = ("gradient_norm", "hessian_norm", "curvature", "accuracy")
_ABLATION = ("curvature", "hessian_norm", "gradient_norm", "accuracy")
_PGD = ("accuracy", "pgd_0.05", "pgd_0.1", "pgd_0.15", "pgd_0.2")
_STRONG = ("apgd_t", "square", "accuracy")
_DISCREPANCY = ("gap_gradient_norm", "gap_hessian_norm", "gap_curvature")


def _row(columns: tuple[str, ...], *numbers: float | Number) -> Row:
    pairs = [number if isinstance(number, tuple) else (number, None) for number in numbers]
    return dict(zip(columns, pairs, strict=True))


GEOMETRY = {  # Table 1: CIFAR-100, ResNet-18
    "standard": _row(_GEOMETRY, (19.66, 0.33), (6061.96, 968.05), (270.89, 75.04), (77.42, 0.11)),
    "lcnn": _row(_GEOMETRY, (22.04, 1.41), (1143.62, 99.38), (69.50, 2.41), (77.30, 0.11)),
    "gradreg": _row(_GEOMETRY, (8.86, 0.12), (776.56, 63.62), (89.47, 5.86), (77.20, 0.26)),
    "lcnn+gradreg": _row(_GEOMETRY, (9.87, 0.27), (154.36, 0.22), (25.30, 0.09), (77.29, 0.07)),
    "cure": _row(_GEOMETRY, (8.86, 0.01), (979.45, 14.05), (116.31, 4.58), (76.48, 0.07)),
    "softplus-wd": _row(_GEOMETRY, (18.08, 0.05), (1052.84, 7.27), (70.39, 0.88), (77.44, 0.28)),
    "adv": _row(_GEOMETRY, (7.99, 0.03), (501.43, 18.64), (63.79, 1.65), (76.96, 0.26)),
}

ATTACKS = {  # Table 2: CIFAR-100, ResNet-18, accuracy under l2 PGD
    "standard": _row(_PGD, (77.42, 0.10), (59.97, 0.11), (37.55, 0.13), (23.41, 0.08), (16.11, 0.21)),
    "lcnn": _row(_PGD, (77.16, 0.07), (61.17, 0.53), (39.72, 0.17), (25.60, 0.32), (17.66, 0.18)),
    "gradreg": _row(_PGD, (77.20, 0.26), (71.90, 0.11), (61.06, 0.03), (49.19, 0.12), (38.09, 0.47)),
    "lcnn+gradreg": _row(_PGD, (77.29, 0.26), (72.68, 0.52), (63.36, 0.39), (52.96, 0.76), (42.70, 0.77)),
    "cure": _row(_PGD, (76.48, 0.07), (71.39, 0.12), (61.28, 0.32), (49.60, 0.09), (39.04, 0.16)),
    "softplus-wd": _row(_PGD, (77.44, 0.28), (60.86, 0.36), (38.04, 0.43), (23.85, 0.33), (16.20, 0.01)),
    "adv": _row(_PGD, (76.96, 0.26), (72.76, 0.15), (64.70, 0.20), (54.80, 0.25), (44.98, 0.57)),
}

DISCREPANCY = {  # Table 3: CIFAR-100, ResNet-18, |(test - train) / test| as printed (values above 1 included)
    "standard": _row(_DISCREPANCY, 11.75, 12.28, 0.025),
    "gradreg": _row(_DISCREPANCY, 11.33, 11.22, 0.017),
    "lcnn": _row(_DISCREPANCY, 19.99, 11.33, 0.129),
    "lcnn+gradreg": _row(_DISCREPANCY, 21.82, 10.43, 0.146),
}

ABLATIONS = {  # Appendix: CIFAR-100, ResNet-18, one change at a time
    "convsn-only": _row(_ABLATION, 358.86, 8380.55, 23.92, 77.55),
    "gbn-only": _row(_ABLATION, 65.78, 1086.95, 20.86, 77.33),
    "csoftplus-only": _row(_ABLATION, 57.49, 734.05, 16.99, 77.31),
    "standard": _row(_ABLATION, 270.89, 6061.96, 19.66, 77.42),
    "lcnn": _row(_ABLATION, 69.40, 1143.62, 22.04, 77.30),
}

AUTOATTACK = {  # Appendix: CIFAR-100, ResNet-18, APGD-T and Square; the radius is not printed
    "standard": _row(_STRONG, 22.122, 52.874, 76.721),
    "lcnn": _row(_STRONG, 23.709, 52.179, 76.602),
    "gradreg": _row(_STRONG, 50.294, 64.678, 76.394),
    "lcnn+gradreg": _row(_STRONG, 52.477, 64.678, 76.622),
    "cure": _row(_STRONG, 50.096, 63.488, 75.928),
    "softplus-wd": _row(_STRONG, 23.907, 53.766, 76.622),
    "adv": _row(_STRONG, 55.155, 66.861, 75.521),
    "cure+gradreg": _row(_STRONG, 60.810, 67.357, 74.192),
    "lcnn+gradreg+adv": _row(_STRONG, 59.222, 66.861, 75.382),
}

GEOMETRY_SVHN_VGG11 = {  # Appendix
    "standard": _row(_GEOMETRY, 2.87, 158.29, 54.24, 96.01),
    "lcnn": _row(_GEOMETRY, 4.04, 83.34, 30.05, 95.61),
    "gradreg": _row(_GEOMETRY, 1.85, 57.52, 33.34, 96.03),
    "lcnn+gradreg": _row(_GEOMETRY, 2.02, 25.54, 17.06, 96.23),
    "adv": _row(_GEOMETRY, 1.25, 27.64, 24.23, 96.37),
}

GEOMETRY_SVHN_RESNET18 = {  # Appendix
    "standard": _row(_GEOMETRY, 2.64, 204.38, 78.22, 96.41),
    "lcnn": _row(_GEOMETRY, 2.91, 77.78, 25.36, 96.35),
    "gradreg": _row(_GEOMETRY, 1.63, 68.22, 39.55, 96.57),
    "lcnn+gradreg": _row(_GEOMETRY, 1.69, 31.69, 15.28, 96.53),
    "adv": _row(_GEOMETRY, 1.05, 22.96, 24.48, 96.64),
}

GEOMETRY_CIFAR100_VGG11 = {  # Appendix
    "standard": _row(_GEOMETRY, 17.07, 1482.16, 85.81, 73.33),
    "lcnn": _row(_GEOMETRY, 15.88, 282.06, 41.14, 73.76),
    "gradreg": _row(_GEOMETRY, 10.64, 534.71, 48.26, 72.65),
    "lcnn+gradreg": _row(_GEOMETRY, 9.81, 105.07, 24.48, 73.01),
    "adv": _row(_GEOMETRY, 6.20, 166.73, 27.37, 71.13),
}

EPOCH_SECONDS = {  # Section 5.1: seconds per epoch on a GTX 1080 Ti ("~")
    "standard": _row(("epoch_seconds",), 100),
    "softplus-wd": _row(("epoch_seconds",), 100),
    "lcnn": _row(("epoch_seconds",), 160),
    "gradreg": _row(("epoch_seconds",), 270),
    "lcnn+gradreg": _row(("epoch_seconds",), 350),
    "cure": _row(("epoch_seconds",), 500),
    "adv": _row(("epoch_seconds",), 500),
}

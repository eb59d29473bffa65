"""The demonstration: four methods on the bundled digits, with everything that the library measures, in minutes.

The network is the certifiable one, without batch norm, so that certificates mean something; the tables of the
paper use residual networks. Every claim asks for more than chance can give: two seeds must agree on it, and its
threshold is beyond the 95 % interval of what it compares, which the comments beside it derive.
"""

from dataclasses import replace
from pathlib import Path

from lowcurve.evaluation.measurement import PER_SAMPLE, Budget, Measurement, Settings, Values, written
from lowcurve.evaluation.subject import Subject
from lowcurve.experiments import attacks, gradient_robustness
from lowcurve.experiments.claims import OURS, Claim
from lowcurve.experiments.experiment import ACCURACY, Column, Curve, Experiment, rows
from lowcurve.experiments.geometry import GEOMETRY
from lowcurve.experiments.moons import BOUNDARY
from lowcurve.experiments.moons import FIGURE as MOONS
from lowcurve.experiments.presets import MOONS as MOONS_TRAINING
from lowcurve.experiments.presets import Preset
from lowcurve.experiments.reproduce import Request
from lowcurve.experiments.saliency import FIGURE as SALIENCY

COMMAND = "lowcurve demo"
RADII = (0.1, 0.25, 0.5, 0.75, 1.0)  # 8×8 pixels are few: what breaks a photograph at 0.1 takes 0.5 here
_PERCENT = 100.0


def sharpest(subject: Subject, settings: Settings) -> Values:
    """Return how sharp the margin is bent where it is bent most: the 99th percentile of its curvature."""
    from lowcurve.geometry.dataset import measure

    found = measure(subject.model, subject.split(), of=("margin",), tol=settings["tol"])["margin_curvature"]
    return {"sharpest": found.quantile(settings["quantile"]).item()}


def measure(subject: Subject, settings: Settings) -> Values:
    """Certify samples: the share that no input within each radius can change, and the median radius."""
    from lowcurve.errors import UserError
    from lowcurve.guarantees.certificate import certify

    x, y = subject.samples(settings["samples"])
    try:
        found = certify(subject.model, x, y)
    except UserError as refusal:
        return {"certificate_refused": str(refusal)}
    proven = {radius: found.radius > radius for radius in settings["radii"]}
    shares = [float(held.double().mean()) for held in proven.values()]
    return {
        **{f"certified_{radius:g}": share for radius, share in zip(settings["radii"], shares, strict=True)},
        PER_SAMPLE: {f"certified_{radius:g}": written(held) for radius, held in proven.items()},
        "certified_radii": settings["radii"],
        "certified_curve": [100 * share for share in shares],
        "certified_radius": found.radius.median().item(),
        "lipschitz_radius": found.lipschitz_radius.median().item(),
    }


CERTIFICATE = Measurement(
    "certificate",
    measure,
    lambda samples: {"samples": samples.stability, "radii": [0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5]},
)
PGD = replace(
    attacks.PGD,
    settings=lambda samples: {"samples": samples.pgd, "steps": samples.pgd_steps, "radii": list(RADII)},
)
SHARPEST = Measurement("sharpest", sharpest, lambda samples: {"quantile": 0.99, "tol": 1e-2})
DEMO = Experiment(
    name="demo",
    title="Four methods on digits",
    source="A demonstration; Tables 1 and 2 and Figure 2",
    data="digits",
    model="convnet",
    rows=rows("standard", "lcnn", "gradreg", "lcnn+gradreg"),
    measurements=(GEOMETRY, PGD, gradient_robustness.STABILITY, CERTIFICATE),
    columns=(
        ACCURACY,
        Column("margin_curvature_median", "median C_margin"),
        Column("margin_curvature", "E C_margin"),
        Column("gradient_norm", "E‖∇f‖₂"),
        Column("pgd_0.5", "PGD ε = 0.5 (%)", 1, "high", _PERCENT),
        Column("certified_0.1", "certified ε = 0.1 (%)", 1, "high", _PERCENT),
        Column("certified_radius", "median certified radius", 3, "high"),
    ),
    curves=(
        attacks.CURVE,
        Curve("certified_radii", "certified_curve", "ℓ₂ radius", "certified accuracy (%)"),
        gradient_robustness.CURVE,
    ),
    claims=(
        # Medians of 200 samples: 95 % intervals are within a factor of 1.5.
        Claim(
            "LCNN bends a third as much or less",
            "margin_curvature_median[lcnn] / margin_curvature_median[standard] <= 0.33",
        ),
        Claim(
            "GradReg does not take from that",
            "margin_curvature_median[lcnn+gradreg] / margin_curvature_median[standard] <= 0.33",
            OURS,
        ),
        # Two accuracies of 98 % on 359 samples differ by up to 2 points by chance.
        Claim("LCNN loses no accuracy, as far as 359 samples tell", "accuracy[lcnn] − accuracy[standard] >= -2"),
        Claim("Nor does LCNN + GradReg", "accuracy[lcnn+gradreg] − accuracy[standard] >= -2"),
        # Two accuracies near 50 % on 359 samples differ by up to 7.3 points by chance.
        Claim("LCNN resists PGD better", "pgd_0.5[lcnn] − pgd_0.5[standard] >= 8"),
        Claim("LCNN + GradReg resists PGD better still", "pgd_0.5[lcnn+gradreg] − pgd_0.5[lcnn] >= 8"),
        # Two shares of 64 samples differ by up to 17 points by chance.
        Claim("LCNN can be certified", "certified_0.1[lcnn] − certified_0.1[standard] >= 20", OURS),
    ),
    command=COMMAND,
)

PRESET = Preset(
    name="demo",
    about="what `lowcurve demo` runs",
    swaps={("cifar100", "resnet18"): ("digits", "convnet")},
    # No batch norm keeps gradients small here, so they are clipped.
    training={
        "model.width": 16,
        "train.epochs": 15,
        "train.batch_size": 64,
        "train.lr": 0.1,
        "train.clip_gradient": 1.0,
    },
    seeds=(0, 1),
    samples=Budget(geometry=200, stability=64, pgd=359, pgd_steps=20, strong=64, apgd_steps=10, square_queries=100),
    coefficients={"curvature": {"lambda_beta": 1e-3, "lambda_gamma": 1e-4}, "gradient": {"lambda_grad": 0.1}},
    # With few points a standard network shows its kinks.
    by_data={"moons": {**MOONS_TRAINING, "data.limit_train": 100, "train.epochs": 300, "train.batch_size": 20}},
)

_MOONS_ROWS = ("standard", "lcnn", "beta-1", "beta-10", "beta-50")
_MOONS_NOTE = (
    "Trained on 100 points, judged on 1,000. A standard network is flat almost everywhere and has kinks, so the median "
    "of its curvature is near 0 and the mean hangs on the few points that lie on a kink: the 99th percentile tells how "
    "sharp those are."
)


def requests(output: Path, results: Path, jobs: int) -> list[Request]:
    """Return what the demonstration runs: the four methods, their saliency maps, and the moons."""
    moons = replace(
        MOONS,
        rows=tuple(row for row in MOONS.rows if row.key in _MOONS_ROWS),
        measurements=(SHARPEST, GEOMETRY, BOUNDARY),
        columns=(
            Column("mean_beta", "mean β", 2, "none"),
            Column("sharpest", "C_margin, 99th percentile", 1),
            ACCURACY,
        ),
        claims=(
            # Of 1,000 points 10 are above it; over seeds it varies by a factor of 6.
            Claim(
                "LCNN's sharpest bends are a tenth as sharp, or less sharp",
                "sharpest[lcnn] / sharpest[standard] <= 0.15",
            ),
            # Two accuracies of 99 % on 1,000 points differ by up to 0.9 points by chance.
            Claim("LCNN loses no accuracy, as far as 1,000 points tell", "accuracy[lcnn] − accuracy[standard] >= -0.9"),
        ),
        notes=(_MOONS_NOTE, *MOONS.notes),
        seeds=PRESET.seeds,
        command=COMMAND,
    )
    # Mean cosines of 64 samples differ by up to 0.05 by chance.
    claim = "saliency_cosine[lcnn+gradreg] − saliency_cosine[standard] >= 0.05"
    saliency = replace(
        SALIENCY,
        claims=(Claim("LCNN + GradReg's maps change less than the standard network's", claim, OURS),),
        command=COMMAND,
    )
    return [Request(one, PRESET, output, results, jobs=jobs) for one in (DEMO, saliency, moons)]

"""The demonstration: four methods on the bundled digits, with everything that the library measures, in minutes.

The network is the certifiable one, without batch norm, so that certificates mean something; the tables of the
paper use residual networks.
"""

from dataclasses import replace
from pathlib import Path

from lowcurve.evaluation.measurement import Measurement, Samples, Settings, Values
from lowcurve.evaluation.subject import Subject
from lowcurve.experiments import attacks, gradient_robustness
from lowcurve.experiments.claims import OURS, Claim
from lowcurve.experiments.experiment import ACCURACY, Column, Curve, Experiment, rows
from lowcurve.experiments.geometry import GEOMETRY
from lowcurve.experiments.moons import FIGURE as MOONS
from lowcurve.experiments.presets import MOONS as MOONS_TRAINING
from lowcurve.experiments.presets import Preset
from lowcurve.experiments.request import Request
from lowcurve.experiments.saliency import FIGURE as SALIENCY

COMMAND = "lowcurve demo"
_PERCENT = 100.0


def measure(subject: Subject, settings: Settings) -> Values:
    """Certify samples: the share that no input within each radius can change, and the median radius."""
    from lowcurve.errors import UserError
    from lowcurve.guarantees.certificate import certify

    x, y = subject.samples(settings["samples"])
    try:
        found = certify(subject.model, x, y)
    except UserError as refusal:
        return {"certificate_refused": str(refusal)}
    shares = [float((found.radius > radius).double().mean()) for radius in settings["radii"]]
    return {
        **{f"certified_{radius:g}": share for radius, share in zip(settings["radii"], shares, strict=True)},
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
DEMO = Experiment(
    name="demo",
    title="Four methods on digits",
    source="A demonstration; Tables 1 and 2 and Figure 2",
    data="digits",
    model="convnet",
    rows=rows("standard", "lcnn", "gradreg", "lcnn+gradreg"),
    measurements=(GEOMETRY, attacks.PGD, gradient_robustness.STABILITY, CERTIFICATE),
    columns=(
        ACCURACY,
        Column("gradient_norm", "E‖∇f‖₂"),
        Column("curvature", "E C_f"),
        Column("curvature_median", "median C_f"),
        Column("pgd_0.2", "PGD ε = 0.2 (%)", 1, "high", _PERCENT),
        Column("certified_0.1", "certified ε = 0.1 (%)", 1, "high", _PERCENT),
        Column("certified_radius", "median certified radius", 3, "high"),
    ),
    curves=(
        attacks.CURVE,
        Curve("certified_radii", "certified_curve", "ℓ₂ radius", "certified accuracy (%)"),
        gradient_robustness.CURVE,
    ),
    claims=(
        Claim("LCNN halves curvature", "curvature[lcnn] / curvature[standard] <= 0.5"),
        Claim("LCNN + GradReg resists PGD at least as well", "pgd_0.2[lcnn+gradreg] − pgd_0.2[standard] >= 0"),
        Claim("LCNN can be certified", "certified_0.1[lcnn] − certified_0.1[standard] >= 0", OURS),
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
        "train.lr": 0.05,
        "train.clip_gradient": 1.0,
    },
    seeds=(0,),
    samples=Samples(geometry=200, stability=64, pgd=200, pgd_steps=20, strong=64, apgd_steps=10, square_queries=100),
    coefficients={"curvature": {"lambda_beta": 1e-3, "lambda_gamma": 1e-4}},
    by_data={"moons": MOONS_TRAINING},
)

_MOONS_ROWS = ("standard", "lcnn", "beta-1", "beta-10", "beta-50")


def requests(output: Path, results: Path, jobs: int) -> list[Request]:
    """Return what the demonstration runs: the four methods, their saliency maps, and the moons."""
    moons = replace(MOONS, rows=tuple(row for row in MOONS.rows if row.key in _MOONS_ROWS), command=COMMAND)
    saliency = replace(SALIENCY, command=COMMAND)
    return [Request(one, PRESET, output, results, jobs=jobs) for one in (DEMO, saliency, moons)]

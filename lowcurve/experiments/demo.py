"""The demonstration: four methods on the bundled digits, with everything that the library measures, in minutes.

The network is the certifiable one, without batch norm, so that certificates mean something; the tables of the
paper use residual networks.
"""

from dataclasses import replace
from pathlib import Path

from lowcurve.experiments.claims import difference, ratio
from lowcurve.experiments.experiment import ACCURACY, Column, Curve, Experiment, rows
from lowcurve.experiments.gradient_robustness import CURVE as STABILITY
from lowcurve.experiments.moons import FIGURE as MOONS
from lowcurve.experiments.presets import MOONS as MOONS_TRAINING
from lowcurve.experiments.presets import Preset, Samples
from lowcurve.experiments.reproduce import Request
from lowcurve.experiments.saliency import FIGURE as SALIENCY

COMMAND = "lowcurve demo"
_PERCENT = 100.0

DEMO = Experiment(
    name="demo",
    title="Four methods on digits",
    source="A demonstration; Tables 1 and 2 and Figure 2",
    data="digits",
    model="convnet",
    rows=rows("standard", "lcnn", "gradreg", "lcnn+gradreg"),
    measurements=("geometry", "pgd", "stability", "certificate"),
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
        Curve("pgd_radii", "pgd_curve", "ℓ₂ radius of the attack", "accuracy (%)"),
        Curve("certified_radii", "certified_curve", "ℓ₂ radius", "certified accuracy (%)"),
        STABILITY,
    ),
    claims=(
        ratio("LCNN halves curvature", "curvature", "lcnn", "standard", "<=", 0.5),
        difference("LCNN + GradReg resists PGD at least as well", "pgd_0.2", "lcnn+gradreg", "standard", ">=", 0.0),
        difference("LCNN can be certified", "certified_0.1", "lcnn", "standard", ">=", 0.0, source="project"),
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

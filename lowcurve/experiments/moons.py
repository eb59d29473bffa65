"""Figure of decision boundaries on two moons, from nearly linear networks to the standard one; and softplus curves."""

from itertools import pairwise
from typing import Any

from lowcurve.evaluation.measurement import Measurement, Settings, Values
from lowcurve.evaluation.subject import Subject
from lowcurve.experiments.claims import Claim
from lowcurve.experiments.experiment import ACCURACY, Column, Experiment, Measured, Row, rows
from lowcurve.experiments.geometry import GEOMETRY

START_BETAS = (1.0, 5.0, 10.0, 20.0, 50.0)  # where training starts; the slider shows where it ended
BOX = (0.05, 0.95, 0.2, 0.8)  # x from, x to, y from, y to
SCALE = 600  # pixels per unit
TEXTS = {
    "slider": "Sharpness β of the activations",
    "caption": "Decision boundary (line) and probability of the second class (shades) of small networks trained on two "
    "moons. Move the slider, or use the arrow keys, from nearly linear networks (low β) over the low-curvature one to "
    "the standard network (β = 1000), whose boundary has corners.",
}
LEVELS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)

# Spectral norms are left out: a slope of at most 1 on points this close together fits no moon in any sensible time.
_LOW = Row(
    "lcnn",
    "LCNN (centered softplus, penalty on β)",
    "csoftplus-only",
    {"method.init_beta": 20.0, "method.lambda_beta": 3e-4},
)
_SWEEP = tuple(
    Row(
        f"beta-{beta:g}",
        f"Centered softplus, β₀ = {beta:g}",
        "csoftplus-only",
        {"method.init_beta": beta, "method.lambda_beta": 0.0},
        ours=True,
    )
    for beta in START_BETAS
)


def measure(subject: Subject, settings: Settings) -> Values:
    """Evaluate the probability of the second class on a grid over a box of the plane, and the mean β."""
    import torch

    from lowcurve.training.log import constants

    left, right, bottom, top = settings["box"]
    steps = settings["steps"]
    xs, ys = torch.linspace(left, right, 3 * steps // 2), torch.linspace(bottom, top, steps)
    grid = torch.stack(torch.meshgrid(xs, ys, indexing="xy"), dim=-1).reshape(-1, 2)
    with torch.no_grad():
        share = subject.model(grid).softmax(1)[:, 1].reshape(steps, -1)
    betas = list(constants(subject.model)["beta"].values())
    values: Values = {"boundary": [[round(value, 4) for value in row] for row in share.tolist()]}
    return values | ({"mean_beta": sum(betas) / len(betas)} if betas else {})


def extend(measured: Measured) -> dict[str, Any]:
    """Draw the boundary of each network of the first seed as SVG paths, in the order of β."""
    nets = []
    for row in FIGURE.rows:
        seeds = measured.get(row.key, {})
        values = next(iter(seeds.values()), {})
        if "boundary" in values:
            beta = values.get("mean_beta")
            shown = "standard network, β = 1000" if row.key == "standard" else f"{row.label}: β = {beta:.2g}"
            nets.append(
                {
                    "row": row.key,
                    "label": f"{shown}, accuracy {100 * values['accuracy']:.1f} %",
                    "order": beta if beta is not None else 1000.0,
                    **_paths(values["boundary"]),
                }
            )
    curves = [_activations()]
    if not nets:
        return {"curves": curves}
    nets.sort(key=lambda net: net["order"])
    width, height = round((BOX[1] - BOX[0]) * SCALE), round((BOX[3] - BOX[2]) * SCALE)
    start = next((place for place, net in enumerate(nets) if net["row"] == _LOW.key), 0)
    outlines = {"nets": nets, "start": start, "width": width, "height": height, "points": _points(), **TEXTS}
    return {"curves": curves, "extra": {"outlines": outlines}}


def _paths(boundary: list[list[float]]) -> dict[str, Any]:
    """Turn probabilities on a grid over `BOX` into one path per band of `LEVELS` and one for 1/2."""
    import numpy
    from contourpy import FillType, LineType, contour_generator

    grid = numpy.asarray(boundary)
    xs = numpy.linspace(0, (BOX[1] - BOX[0]) * SCALE, grid.shape[1])
    ys = numpy.linspace((BOX[3] - BOX[2]) * SCALE, 0, grid.shape[0])  # pixels count downwards
    contours = contour_generator(xs, ys, grid, fill_type=FillType.OuterOffset, line_type=LineType.Separate)
    areas = []
    for low, high in pairwise(LEVELS):
        filled: Any = contours.filled(low - 1e-6, high + 1e-6)  # polygons, and where rings begin
        rings = [ring for points, starts in zip(*filled, strict=True) for ring in numpy.split(points, starts[1:-1])]
        areas.append("".join(_path(ring) + "Z" for ring in rings))
    return {"areas": areas, "boundary": "".join(_path(line) for line in contours.lines(0.5))}


def _path(points: Any) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def _points() -> list[list[float]]:
    """Return every fifth test point in pixels, with its class."""
    from lowcurve.data import load_dataset

    x, y = load_dataset("moons").test.batch(slice(None, None, 5))
    return [
        [round((a - BOX[0]) * SCALE, 1), round((BOX[3] - b) * SCALE, 1), label]
        for (a, b), label in zip(x.tolist(), y.tolist(), strict=True)
    ]


def _activations() -> dict[str, Any]:
    """Return softplus and centered softplus for a low, a middle and a high β."""
    import torch
    from torch.nn import functional as F

    from lowcurve.layers.softplus import CenteredSoftplus

    x = torch.linspace(-2, 2, 41)
    lines = []
    for beta in (0.3, 1.0, 10.0):
        with torch.no_grad():
            values = {"softplus": F.softplus(x, beta), "centered softplus": CenteredSoftplus(beta)(x)}
        for name, y in values.items():
            ys = [round(value, 4) for value in y.tolist()]
            line = {"row": name, "label": f"{name}, β = {beta:g}", "x": [round(v, 2) for v in x.tolist()]}
            lines.append({**line, "y": ys, "low": ys, "high": ys})
    return {"x_label": "x", "y_label": "activation", "log": False, "lines": lines}


BOUNDARY = Measurement("boundary", measure, lambda samples: {"box": list(BOX), "steps": 80})
FIGURE = Experiment(
    name="figure-moons",
    title="Decision boundaries on two moons; softplus and centered softplus",
    source="Figure 1",
    data="moons",
    model="mlp",
    rows=(*rows("standard"), _LOW, *_SWEEP),
    measurements=(GEOMETRY, BOUNDARY),
    columns=(
        Column("mean_beta", "mean β", 2, "none"),
        Column("curvature", "E C_f"),
        Column("curvature_median", "median C_f"),
        Column("margin_curvature", "E C_margin"),
        ACCURACY,
    ),
    claims=(Claim("LCNN has the more regular boundary", "margin_curvature[lcnn] / margin_curvature[standard] <= 1"),),
    extend=extend,
    told=False,
    seeds=(0,),
    notes=(
        "Inputs are the two moons shrunk by 4 into the unit square, so that a given β bends four times less "
        "here than on moons of the usual size. The low-curvature network has no spectral norms: with slopes of at most "
        "1 it cannot tell points this close apart.",
    ),
)
EXPERIMENTS = (FIGURE,)

"""How does accuracy fall as the radius grows? The curves of one model or several, drawn with their intervals."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from lowcurve.attacks.table import Evaluation
from lowcurve.plots import DASHES, draw_chart

_SHARES = {"y": "accuracy", "low": "low", "high": "high"}


def plot_curves(
    evaluations: Mapping[str, Evaluation], path: Path, distances: Mapping[str, Tensor] | None = None
) -> None:
    """Draw accuracy over ε, a color per model and a line style per attack, 95 % intervals as bands.

    `distances` are minimal norms per model; the share of samples whose distance exceeds ε is a curve over all
    radii at once, drawn as thin steps.
    """
    lines = []
    for place, (name, evaluation) in enumerate(evaluations.items()):
        for attack, style in zip(evaluation.attacks, DASHES * len(evaluation.attacks), strict=False):
            curve = evaluation.curve(attack)
            shares = {key: [100 * getattr(cell, of) for cell in curve] for key, of in _SHARES.items()}
            label = f"{name}, {attack}" if len(evaluations) > 1 else attack
            lines.append({"label": label, "color": place, "style": style, "x": [cell.eps for cell in curve], **shares})
    for place, (name, distance) in enumerate((distances or {}).items()):
        at, share = survival(distance)
        lines.append({"label": f"{name}, distance", "color": place, "steps": True, "x": at, "y": 100 * share})
    largest = max(evaluation.radii[-1] for evaluation in evaluations.values())
    norm = "ℓ₂" if next(iter(evaluations.values())).norm == 2 else "ℓ∞"
    chart = {
        "x_label": f"ε ({norm}, pixels in [0, 1])",
        "y_label": "accuracy (%)",
        "log": False,
        "lines": lines,
        "limits": {"xlim": (0, largest), "ylim": (0, 100)},
    }
    draw_chart(chart, "", path.with_suffix(""), {path.suffix[1:] or "png": 150})


def survival(distance: Tensor) -> tuple[Tensor, Tensor]:
    """Return radii from 0 on, and the share of samples whose distance exceeds each.

    >>> survival(torch.tensor([0.2, 0.1, 0.0, float("inf")]))
    (tensor([0.0000, 0.1000, 0.2000]), tensor([0.7500, 0.5000, 0.2500]))
    """
    radii = torch.cat([distance.new_zeros(1), distance[distance.isfinite()]]).unique()
    return radii, (distance[:, None] > radii).to(distance.dtype).mean(0)

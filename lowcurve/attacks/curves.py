"""How does accuracy fall as the radius grows? The curves of one model or several, drawn with their intervals."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from lowcurve.attacks.table import Evaluation
from lowcurve.files import atomically
from lowcurve.text import figure as figure_text

_STYLES = ("-", "--", ":", "-.")


def plot_curves(
    evaluations: Mapping[str, Evaluation], path: Path, distances: Mapping[str, Tensor] | None = None
) -> None:
    """Draw accuracy over ε, a color per model and a line style per attack, 95 % intervals as bands.

    `distances` are minimal norms per model; the share of samples whose distance exceeds ε is a curve over all
    radii at once, drawn as thin steps.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for place, (name, evaluation) in enumerate(evaluations.items()):
        color = f"C{place}"
        for attack, style in zip(evaluation.attacks, _STYLES * len(evaluation.attacks), strict=False):
            curve = evaluation.curve(attack)
            radii = [cell.eps for cell in curve]
            label = f"{name}, {attack}" if len(evaluations) > 1 else attack
            axes.plot(
                radii, [100 * cell.accuracy for cell in curve], style, color=color, label=figure_text(label), marker="."
            )
            low, high = ([100 * getattr(cell, end) for cell in curve] for end in ("low", "high"))
            axes.fill_between(radii, low, high, color=color, alpha=0.12, linewidth=0)
    largest = max(evaluation.radii[-1] for evaluation in evaluations.values())
    for place, (name, distance) in enumerate((distances or {}).items()):
        at, share = survival(distance)
        axes.step(
            at, 100 * share, where="post", color=f"C{place}", linewidth=0.8, label=figure_text(f"{name}, distance")
        )
    norm = next(iter(evaluations.values())).norm
    axes.set(xlim=(0, largest), ylim=(0, 100), ylabel="accuracy (%)")
    axes.set_xlabel(f"ε ({'ℓ₂' if norm == 2 else 'ℓ∞'}, pixels in [0, 1])")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    with atomically(path) as file:
        figure.savefig(file, dpi=150)


def survival(distance: Tensor) -> tuple[Tensor, Tensor]:
    """Return radii from 0 on, and the share of samples whose distance exceeds each.

    >>> survival(torch.tensor([0.2, 0.1, 0.0, float("inf")]))
    (tensor([0.0000, 0.1000, 0.2000]), tensor([0.7500, 0.5000, 0.2500]))
    """
    radii = torch.cat([distance.new_zeros(1), distance[distance.isfinite()]]).unique()
    return radii, (distance[:, None] > radii).to(distance.dtype).mean(0)

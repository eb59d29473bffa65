"""Certified against attacked accuracy over radii: what is proven, what is refuted, and what nobody knows between."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lowcurve.files import atomically, make_folder
from lowcurve.text import figure as figure_text
from lowcurve.types import Certificate


@dataclass(frozen=True)
class Curves:
    """Accuracies at `radii`: certified by the combined and the Lipschitz radius, and left over by an attack.

    At every radius certified ≤ true robust accuracy ≤ attacked.
    """

    radii: Tensor
    certified: Tensor
    lipschitz: Tensor
    attacked: Tensor


def curves(certificate: Certificate, distances: Tensor, count: int = 200) -> Curves:
    """Count at each radius the samples that are certified and those that no misclassified point was found for.

    `distances` are those of the nearest misclassified points found (`boundary_distance`).
    """
    found = distances[distances.isfinite()]
    end = 1.2 * max(float(found.quantile(0.98)) if len(found) else 0.0, float(certificate.radius.max()), 1e-6)
    radii = torch.linspace(0, end, count, dtype=torch.float64)

    def share(reached: Tensor) -> Tensor:
        return (certificate.correct & (reached > radii.view(-1, 1))).double().mean(1)

    return Curves(radii, share(certificate.radius), share(certificate.lipschitz_radius), share(distances))


def draw(lines: Curves, title: str, stem: Path) -> list[Path]:
    """Draw the curves to `stem`.png and `stem`.svg; the area between proof and refutation is shaded."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.add_subplot()
    x = lines.radii.numpy()
    certified, attacked = (100 * share.numpy() for share in (lines.certified, lines.attacked))
    axes.fill_between(x, certified, attacked, color="0.88", label="nobody knows")
    axes.plot(x, attacked, color="C3", label="attack finds no mistake")
    axes.plot(x, certified, color="C0", label="certified")
    axes.plot(x, 100 * lines.lipschitz.numpy(), color="C0", linestyle=":", label="certified by the Lipschitz bound")
    axes.set(xlabel="ℓ₂ radius (pixels in [0, 1])", ylabel="accuracy (%)", ylim=(0, 101), xlim=(0, x[-1]))
    axes.set_title(figure_text(title), fontsize=9, loc="left")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
    return save_figure(figure, stem)


def save_figure(figure: Any, stem: Path) -> list[Path]:
    """Write a figure to `stem`.png and `stem`.svg."""
    import matplotlib

    make_folder(stem.parent)
    paths = [stem.with_name(f"{stem.name}.{kind}") for kind in ("png", "svg")]
    with matplotlib.rc_context({"svg.hashsalt": "lowcurve"}):  # the same curve gives the same file
        with atomically(paths[0]) as file:
            figure.savefig(file, format="png", dpi=130, metadata={"Software": None})
        with atomically(paths[1]) as file:
            figure.savefig(file, format="svg", metadata={"Date": None})
    return paths

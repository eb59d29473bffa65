"""Certified against attacked accuracy over radii: what is proven, what is refuted, and what nobody knows between."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lowcurve.plots import draw_chart
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


def draw_curves(lines: Curves, title: str, stem: Path) -> list[Path]:
    """Draw the curves to `stem`.png and `stem`.svg; the area between proof and refutation is shaded."""
    certified, lipschitz, attacked = (
        (100 * share).tolist() for share in (lines.certified, lines.lipschitz, lines.attacked)
    )
    x = lines.radii.tolist()
    chart = {
        "x_label": "ℓ₂ radius (pixels in [0, 1])",
        "y_label": "accuracy (%)",
        "log": False,
        "lines": [
            _line("attack finds no mistake (shaded: nobody knows)", 3, x, attacked, low=certified),
            _line("certified", 0, x, certified),
            _line("certified by the Lipschitz bound", 0, x, lipschitz, style=":"),
        ],
        "limits": {"xlim": (0, x[-1]), "ylim": (0, 101)},
    }
    return draw_chart(chart, title, stem)


def _line(label: str, color: int, x: list[float], y: list[float], **more: Any) -> dict[str, Any]:
    return {"label": label, "color": color, "x": x, "y": y, "low": y, "high": y, **more}

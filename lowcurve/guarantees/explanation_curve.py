"""Certified against attacked changes of explanations over radii: what is proven, what was found, what is between."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from lowcurve.plots import KINDS, draw_lines, save_figure
from lowcurve.text import figure as figure_text
from lowcurve.types import ExplanationBound

if TYPE_CHECKING:
    from lowcurve.attacks.manipulation import Manipulation

COLUMNS = ("change", "relative", "cosine")


@dataclass(frozen=True)
class Sides:
    """Both sides of the largest change of N gradients at each radius: its bound, and the strongest one found."""

    radii: tuple[float, ...]
    bounds: "tuple[ExplanationBound, ...]"
    found: "tuple[Manipulation, ...]"

    @property
    def crossings(self) -> int:
        """How many samples have a change beyond its bound, over all radii; any is a bug."""
        pairs = zip(self.bounds, self.found, strict=True)
        return sum(int(((f.change > b.change) | (f.cosine < b.cosine - 1e-12)).sum()) for b, f in pairs)

    def medians(self) -> dict[str, dict[str, list[float]]]:
        """Return {"certified": {"relative": one number per radius, ...}, "attacked": ...}; ∞ where there is none."""

        def middle(results: Sequence[Any]) -> dict[str, list[float]]:
            return {name: [float(getattr(r, name).nanmedian()) for r in results] for name in COLUMNS}

        return {"certified": middle(self.bounds), "attacked": middle(self.found)}

    def stable(self, cosine: float) -> list[float]:
        """Return the share of samples whose gradient is proven to keep at least this cosine, per radius."""
        return [float((bound.cosine >= cosine).double().mean()) for bound in self.bounds]

    def rows(self) -> Iterator[tuple[float, ...]]:
        """Yield sample, radius, the three bounds and the three values found."""
        for radius, bound, found in zip(self.radii, self.bounds, self.found, strict=True):
            columns = [getattr(side, name).tolist() for side in (bound, found) for name in COLUMNS]
            for sample, numbers in enumerate(zip(*columns, strict=True)):
                yield (sample, radius, *numbers)


def both_sides(
    radii: Sequence[float],
    bound: Callable[[float], ExplanationBound],
    attack: "Callable[[float], Manipulation]",
) -> Sides:
    """Bound and attack at each radius. What is found at a radius lies within every larger one and counts there too."""
    radii = sorted(radii)
    found: list[Manipulation] = []
    for radius in radii:
        found.append(attack(radius))
        if len(found) > 1:
            before, now = found[-2:]
            change, relative = torch.fmax(now.change, before.change), torch.fmax(now.relative, before.relative)
            found[-1] = replace(now, change=change, relative=relative, cosine=torch.fmin(now.cosine, before.cosine))
    return Sides(tuple(radii), tuple(bound(radius) for radius in radii), tuple(found))


def draw_sides(sides: Sides, title: str, stem: Path) -> list[Path]:
    """Draw the median relative change and the median cosine to `stem`.png and `stem`.svg, with what is between."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.4, 3.8), layout="constrained")
    medians = sides.medians()
    for axes, name, label in zip(figure.subplots(1, 2), COLUMNS[1:], ("relative change", "cosine"), strict=True):
        certified, attacked = (medians[side][name] for side in ("certified", "attacked"))
        known = [number if abs(number) < 1e100 else float("nan") for number in certified]
        found = {"label": "largest found (shaded: nobody knows)", "color": 3, "y": attacked}
        proven = {"label": "certified", "color": 0, "y": known}
        scale = "log" if name == "relative" and min(attacked) > 0 else "linear"
        chart = {
            "x_label": "ℓ₂ radius (pixels in [0, 1])",
            "y_label": f"gradient's {label}, median",
            "log": False,
            "lines": [{"x": sides.radii, "low": known, "high": line["y"], **line} for line in (found, proven)],
            "limits": {"xscale": "log", "yscale": scale},
        }
        draw_lines(axes, chart)
    figure.suptitle(figure_text(title), fontsize=9)
    return save_figure(figure, stem, KINDS)

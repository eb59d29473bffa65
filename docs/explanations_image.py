"""Draw docs/images/explanations.png from runs that were certified: `python docs/explanations_image.py RUN…`.

Each run has been through `lowcurve certify RUN --explanations`; docs/explanations.md has the commands.
"""

import json
import sys
from pathlib import Path

from matplotlib.figure import Figure

from lowcurve.plots import draw_lines, save_figure

IMAGES = Path(__file__).parent / "images"
SIDES = {"certified": ("-", "proven"), "attacked": ("--", "found")}


def main(runs: list[Path]) -> None:
    found = {run.name: json.loads((run / "certify" / "explanations.json").read_text()) for run in runs}
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    scales = {"relative": "log", "cosine": "linear"}
    for axes, (name, scale) in zip(figure.subplots(1, 2), scales.items(), strict=True):
        lines = [
            {"label": f"{run}, {said}", "color": color, "style": style, "x": values["radii"]}
            | dict.fromkeys(("y", "low", "high"), values[side][name])
            for color, (run, values) in enumerate(found.items())
            for side, (style, said) in SIDES.items()
        ]
        label = {"relative": "gradient's relative change, median", "cosine": "gradient's cosine, median"}[name]
        limits = {"xscale": "log", "yscale": scale}
        draw_lines(axes, {"lines": lines, "log": False, "x_label": "ℓ₂ radius", "y_label": label, "limits": limits})
        radii = sorted({radius for values in found.values() for radius in values["radii"]})
        axes.set_xticks(radii, [f"{radius:g}" for radius in radii])
        axes.minorticks_off()
    figure.axes[0].get_legend().remove()  # one is enough
    save_figure(figure, IMAGES / "explanations", {"png": 110})


if __name__ == "__main__":
    main([Path(run) for run in sys.argv[1:]])

"""Draw docs/images/moons.png from results/digits/figure-moons.json: `python docs/moons_image.py`."""

import json
from pathlib import Path

from matplotlib.figure import Figure

from lowcurve.experiments.results import Result
from lowcurve.plots import draw_lines
from lowcurve.report.plots import draw_net

ROOT = Path(__file__).parents[1]


def main() -> None:
    result = Result(**json.loads((ROOT / "results" / "digits" / "figure-moons.json").read_text()))
    moons = result.extra["outlines"]
    nets = {net["row"]: net for net in moons["nets"]}
    figure = Figure(figsize=(10, 2.8), layout="constrained")
    axes = figure.subplots(1, 3, width_ratios=(3, 3, 2.6))
    draw_net(axes[0], nets["standard"], moons)
    draw_net(axes[1], nets["lcnn"], moons)
    draw_lines(axes[2], result.curves[0])
    axes[2].set_ylim(-1, 6)  # room for the legend
    axes[2].legend(fontsize=6.5, loc="upper left")
    target = ROOT / "docs" / "images" / "moons.png"
    target.parent.mkdir(exist_ok=True)
    figure.savefig(target, dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    main()

"""A result's curves and outlines as files; the page draws its own."""

from pathlib import Path
from typing import Any

from lowcurve import text
from lowcurve.experiments.results import Result
from lowcurve.plots import draw_chart, save_figure

SHADES = ("#b9d4ef", "#d3e3f4", "#edf3fa", "#fcf0e9", "#f8ddcd", "#f2c5aa")  # from the first class to the second


def draw_curves(result: Result, folder: Path) -> list[Path]:
    """Draw each curve of `result` to `folder`/EXPERIMENT[-n].png and .svg; return what was written."""
    written = []
    for position, curve in enumerate(result.curves):
        stem = result.experiment if position == 0 else f"{result.experiment}-{position + 1}"
        written += draw_chart(curve, f"{result.title}\n{result.setting}", folder / stem)
    if outlines := result.extra.get("outlines"):
        # as SVG it would be as large as all the rest together
        written += save_figure(_boundaries(outlines), folder / f"{result.experiment}-boundaries", {"png": 100})
    return written


def _boundaries(outlines: dict[str, Any]) -> Any:
    """Draw the decision boundaries of all networks side by side."""
    from matplotlib.figure import Figure

    nets = outlines["nets"]
    figure = Figure(figsize=(3.2 * len(nets), 2.8), layout="constrained")
    for axes, net in zip(figure.subplots(1, len(nets), squeeze=False)[0], nets, strict=True):
        draw_net(axes, net, outlines)
    return figure


def draw_net(axes: Any, net: dict[str, Any], outlines: dict[str, Any]) -> None:
    """Draw one network's decision boundary over its probabilities and the points."""
    for area, color in zip(net["areas"], SHADES, strict=True):
        axes.add_patch(_patch(area, facecolor=color, edgecolor="none"))
    axes.add_patch(_patch(net["boundary"], fill=False, edgecolor="black", linewidth=1.5))
    for x, y, label in outlines["points"]:
        axes.plot(x, y, ".", color=("C0", "C3")[label], markersize=2)
    axes.set(xlim=(0, outlines["width"]), ylim=(outlines["height"], 0), xticks=[], yticks=[], aspect="equal")
    title = net["label"].replace(": ", "\n").replace(", accuracy", "\naccuracy")
    axes.set_title(text.figure(title), fontsize=8)


def _patch(path: str, **style: Any) -> Any:
    """Read a path of moves, lines and closings (`M0 0L1 0L1 1Z`) as a patch."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path as Outline

    points, codes = [], []
    for stroke in path.replace("Z", "").split("M")[1:]:
        corners = [tuple(map(float, corner.split(" "))) for corner in stroke.split("L")]
        points += corners
        codes += [Outline.MOVETO] + [Outline.LINETO] * (len(corners) - 1)
    return PathPatch(Outline(points or [(0, 0)], codes or [Outline.MOVETO]), **style)

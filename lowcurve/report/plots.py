"""A result's curves as PNG and SVG, for papers and slides; the page draws its own."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lowcurve import text
from lowcurve.experiments.results import Result
from lowcurve.files import make_folder, write_atomic

DASHES = ("-", "--", "-.", ":")
SHADES = ("#b9d4ef", "#d3e3f4", "#edf3fa", "#fcf0e9", "#f8ddcd", "#f2c5aa")  # from the first class to the second


def draw_curves(result: Result, folder: Path) -> list[Path]:
    """Draw each curve of `result` to `folder`/EXPERIMENT[-n].png and .svg; return what was written."""
    written = []
    for position, curve in enumerate(result.curves):
        stem = result.experiment if position == 0 else f"{result.experiment}-{position + 1}"
        written += _save(_figure(curve, f"{result.title}\n{result.setting}"), folder / stem, {"png": 130, "svg": 100})
    if outlines := result.extra.get("outlines"):
        # as SVG it would be as large as all the rest together
        written += _save(_boundaries(outlines), folder / f"{result.experiment}-boundaries", {"png": 100})
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


def _figure(curve: dict[str, Any], title: str) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.add_subplot()
    draw_lines(axes, curve)
    axes.set_title(text.figure(title), fontsize=9, loc="left")
    return figure


def draw_lines(axes: Any, curve: dict[str, Any]) -> None:
    """Draw a line per row, its spread over seeds as a band, its prediction dotted."""
    for position, line in enumerate(curve["lines"]):
        color = f"C{position % 10}"
        style = DASHES[position // 10 % len(DASHES)]
        axes.plot(line["x"], line["y"], style, color=color, marker="o", markersize=3, label=text.figure(line["label"]))
        axes.fill_between(line["x"], line["low"], line["high"], color=color, alpha=0.15, linewidth=0)
        if line.get("predicted"):
            axes.plot(line["x"], line["predicted"], ":", color=color, linewidth=1)
    if curve["log"]:
        axes.set_xscale("log")
        axes.set_yscale("log")
    axes.set(xlabel=text.figure(curve["x_label"]), ylabel=text.figure(curve["y_label"]))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)


def _save(figure: Any, stem: Path, kinds: Mapping[str, int]) -> list[Path]:
    """Write a figure in each kind of file, at so many dots per inch."""
    import matplotlib

    paths: list[Path] = []
    for kind, dots in kinds.items():
        buffer, paths = io.BytesIO(), [*paths, stem.with_name(f"{stem.name}.{kind}")]
        with matplotlib.rc_context({"svg.hashsalt": "lowcurve"}):  # the same curve gives the same file
            metadata = {"Software" if kind == "png" else "Date": None}
            figure.savefig(buffer, format=kind, dpi=dots, metadata=metadata)
        make_folder(stem.parent)
        write_atomic(paths[-1], buffer.getvalue())
    return paths

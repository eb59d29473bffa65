"""How is something drawn for papers and slides? Lines with bands, and pictures side by side, as PNG and SVG files.

A chart is data: labels of its axes and `lines`, each with `label`, `x`, `y`, `low` and `high` (a band), and perhaps
`predicted` (dotted), `color` (a number), `style` and `steps` (a thin stair without marks). The page of a report draws
the same data itself.
"""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lowcurve import text
from lowcurve.files import make_folder, write_atomic

DASHES = ("-", "--", "-.", ":")
MANY = 5  # lines; beyond them the legend stands beside the chart
KINDS = {"png": 130, "svg": 100}  # kind of file -> dots per inch
Chart = Mapping[str, Any]


def draw_chart(chart: Chart, title: str, stem: Path, kinds: Mapping[str, int] = KINDS) -> list[Path]:
    """Draw a chart to `stem`.png and `stem`.svg; return the paths."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4 if len(chart["lines"]) <= MANY else 8.4, 4.2), layout="constrained")
    axes = figure.add_subplot()
    draw_lines(axes, chart)
    axes.set_title(text.figure(title), fontsize=9, loc="left")
    return save_figure(figure, stem, kinds)


def draw_lines(axes: Any, chart: Chart) -> None:
    """Draw a line per row, its spread as a band, its prediction dotted."""
    for position, line in enumerate(chart["lines"]):
        color = f"C{line.get('color', position) % 10}"
        label, style = text.figure(line["label"]), line.get("style", DASHES[position // 10 % len(DASHES)])
        if line.get("steps"):
            axes.step(line["x"], line["y"], where="post", color=color, linewidth=0.8, label=label)
            continue
        mark = "o" if len(line["x"]) <= 50 else None
        axes.plot(line["x"], line["y"], style, color=color, marker=mark, markersize=3, label=label)
        axes.fill_between(line["x"], line["low"], line["high"], color=color, alpha=0.15, linewidth=0)
        if line.get("predicted"):
            axes.plot(line["x"], line["predicted"], ":", color=color, linewidth=1)
    if chart["log"]:
        axes.set(xscale="log", yscale="log")
    axes.set(xlabel=text.figure(chart["x_label"]), ylabel=text.figure(chart["y_label"]), **chart.get("limits", {}))
    axes.grid(alpha=0.3)
    beside = {"loc": "center left", "bbox_to_anchor": (1, 0.5)}  # so many lines leave no room between them
    axes.legend(fontsize=7, **(beside if len(chart["lines"]) > MANY else {}))


def draw_pictures(
    columns: Sequence[tuple[str, Sequence[Any], str]], stem: Path, kinds: Mapping[str, int]
) -> list[Path]:
    """Draw columns of pictures: a title, a matrix (or RGB) per row, and the name of their colors."""
    from matplotlib.figure import Figure

    height = len(columns[0][1])
    figure = Figure(figsize=(1.3 * len(columns), 1.3 * height + 0.3), layout="constrained")
    grid = figure.subplots(height, len(columns), squeeze=False)
    for place, (title, pictures, colors) in enumerate(columns):
        for axes, picture in zip(grid[:, place], pictures, strict=True):
            axes.imshow(picture, cmap=colors, interpolation="nearest")
            axes.set_axis_off()
        grid[0, place].set_title(text.figure(title), fontsize=8)
    return save_figure(figure, stem, kinds)


def save_figure(figure: Any, stem: Path, kinds: Mapping[str, int]) -> list[Path]:
    """Write a figure in each kind of file, at so many dots per inch; the same figure gives the same file."""
    import matplotlib

    make_folder(stem.parent)
    paths = {kind: stem.with_name(f"{stem.name}.{kind}") for kind in kinds}
    for kind, dots in kinds.items():
        buffer = io.BytesIO()
        with matplotlib.rc_context({"svg.hashsalt": "lowcurve"}):
            metadata = {"Software" if kind == "png" else "Date": None}
            figure.savefig(buffer, format=kind, dpi=dots, metadata=metadata)
        write_atomic(paths[kind], buffer.getvalue())
    return list(paths.values())

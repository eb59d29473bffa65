"""A result's curves as PNG and SVG, for papers and slides; the page draws its own."""

from pathlib import Path
from typing import Any

from lowcurve.experiments.results import Result

DASHES = ("-", "--", "-.", ":")


def draw_curves(result: Result, folder: Path) -> list[Path]:
    """Draw each curve of `result` to `folder`/EXPERIMENT[-n].png and .svg; return what was written."""
    written = []
    for position, curve in enumerate(result.curves):
        stem = result.experiment if position == 0 else f"{result.experiment}-{position + 1}"
        written += _save(_figure(curve, f"{result.title}\n{result.setting}"), folder / stem)
    return written


def _figure(curve: dict[str, Any], title: str) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for position, line in enumerate(curve["lines"]):
        color = f"C{position % 10}"
        style = DASHES[position // 10 % len(DASHES)]
        axes.plot(line["x"], line["y"], style, color=color, marker="o", markersize=3, label=line["label"])
        axes.fill_between(line["x"], line["low"], line["high"], color=color, alpha=0.15, linewidth=0)
        if "predicted" in line:
            axes.plot(line["x"], line["predicted"], ":", color=color, linewidth=1)
    if curve["log"]:
        axes.set_xscale("log")
        axes.set_yscale("log")
    axes.set(xlabel=curve["x_label"], ylabel=curve["y_label"])
    axes.set_title(title, fontsize=9, loc="left")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
    return figure


def _save(figure: Any, stem: Path) -> list[Path]:
    import matplotlib

    stem.parent.mkdir(parents=True, exist_ok=True)
    paths = [stem.with_name(f"{stem.name}.{kind}") for kind in ("png", "svg")]
    with matplotlib.rc_context({"svg.hashsalt": "lowcurve"}):  # the same curve gives the same file
        figure.savefig(paths[0], dpi=130, metadata={"Software": None})
        figure.savefig(paths[1], metadata={"Date": None})
    return paths

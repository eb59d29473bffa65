"""One HTML page with every result, its figures and what is behind each number; it needs no network and no server."""

import base64
import hashlib
import io
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowcurve.experiments.geometry import unseen
from lowcurve.experiments.results import Result, load_results, load_runs
from lowcurve.files import make_folder, write_atomic
from lowcurve.report import tables
from lowcurve.report.svg import layer_chart, line_chart, places

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).parent / "templates"


def write_page(folders: Sequence[Path], path: Path, own: Sequence[Path] = ()) -> Path:
    """Write the page of all results under `folders`, and of the runs in the folders `own`, to `path`."""
    results = [result for folder in folders for result in load_results(folder).values()]
    runs = {name: record for folder in folders for name, record in load_runs(folder).items()}
    if own:
        from lowcurve.report.own import own_results

        mine, records = own_results(own)
        results, runs = [*mine, *results], {**runs, **records}
    make_folder(path.parent)
    write_atomic(path, render(results, runs))
    return path


def render(results: Sequence[Result], runs: dict[str, dict[str, Any]]) -> str:
    """Return the page's HTML."""
    counts = {
        verdict: sum(found["verdict"] == verdict for result in results for found in result.verdicts)
        for verdict in tables.VERDICT_MARKS
    }
    style, script = ((TEMPLATES / name).read_text("utf-8") for name in ("page.css", "page.js"))
    return (
        _templates()
        .get_template("page.html")
        .render(
            results=results,
            ids=_ids(results),
            runs=runs,
            counts=counts,
            style=style,
            script=script,
            policy=f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}; img-src data:; "
            "base-uri 'none'; form-action 'none'",
        )
    )


def _ids(results: Sequence[Result]) -> list[str]:
    """Return a name for each result's section; of several folders, results may have the same."""
    ids: list[str] = []
    for result in results:
        name = f"{result.preset}-{result.experiment}"
        ids.append(name if name not in ids else f"{name}--{len(ids)}")
    return ids


@cache
def _templates() -> "Environment":
    """Return the page's templates; whatever they print is escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(
        number=tables.number_text,
        with_interval=tables.with_interval,
        ours=tables.ours,
        paper=tables.paper,
        has_paper=tables.has_paper,
        marks=tables.VERDICT_MARKS,
        line_chart=line_chart,
        places=places,
        order=order,
        layer_charts=layer_charts,
        picture=picture,
        shown=worded,
        best=best,
        banded=lambda curve: any(line["low"] != line["high"] for line in curve["lines"]),
    )
    environment.tests["quotes"] = quotes
    return environment


def quotes(result: Result) -> bool:
    """Whether the page shows numbers of the paper with this result."""
    return tables.has_paper(result) or any(verdict["paper"] is not None for verdict in result.verdicts)


def _digest(code: str) -> str:
    """Return the source by which a page's policy allows exactly this inline code."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()}'"


def worded(value: Any) -> str:
    """Print a setting or a version as a reader wants it: lists as words."""
    if isinstance(value, list):
        return " ".join(map(worded, value))
    if isinstance(value, dict):
        return ", ".join(f"{key} {worded(part)}" for key, part in value.items())
    return "–" if value is None else str(value)


def order(result: Result, results: Sequence[Result]) -> list[str]:
    """Return the rows in the order of their colors; your own runs have theirs on the whole page."""
    together = [other for other in results if other.preset == "own"] if result.preset == "own" else [result]
    return list(dict.fromkeys(row["key"] for other in together for row in other.rows))


def layer_charts(
    result: Result, runs: dict[str, dict[str, Any]], ordered: Sequence[str]
) -> dict[str, tuple[str, list[str], list[int]]]:
    """Return charts of β, γ and σ by layer, with the names and places of their lines, those of first runs."""
    charts = {}
    for kind, label in (("beta", "β"), ("gamma", "γ"), ("sigma", "σ")):
        rows = [row for row in result.rows if row["runs"] and runs.get(row["runs"][0], {}).get(kind)]
        groups = {row["label"]: runs[row["runs"][0]][kind] for row in rows}
        if groups:
            positions = places([row["key"] for row in rows], ordered)
            charts[label] = layer_chart(groups, f"{label} after training", positions), list(groups), positions
    return charts


def best(result: Result, column: dict[str, Any]) -> float | None:
    """Return the best mean of a column, None where no way is better or nothing is there to compare it with."""
    key = column["key"]
    means = [row["cells"][key]["mean"] for row in result.rows if key in row["cells"] and not unseen(row["key"], key)]
    if len(means) < 2 or column["better"] == "none":
        return None
    return min(means) if column["better"] == "low" else max(means)


def picture(pixels: Sequence[Sequence[float]], *, signed: bool = False) -> str:
    """Return a matrix in [0, 1], or in [-1, 1] if `signed`, as the address of an embedded PNG."""
    import numpy
    from PIL import Image

    values = numpy.asarray(pixels, dtype=numpy.float64)
    if signed:  # blue, white, red
        strength = numpy.clip(numpy.abs(values), 0, 1)[..., None]
        hue = numpy.where(values[..., None] > 0, (178, 24, 43), (33, 102, 172))
        colors = 255 * (1 - strength) + hue * strength
        image = Image.fromarray(colors.astype(numpy.uint8), "RGB")
    else:
        image = Image.fromarray((numpy.clip(values, 0, 1) * 255).astype(numpy.uint8), "L")
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()

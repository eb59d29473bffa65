"""Write a result in every form: Markdown, LaTeX and CSV beside its JSON, its figures, and the page over all results."""

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from lowcurve import text
from lowcurve.errors import UserError
from lowcurve.experiments import EXPERIMENTS
from lowcurve.experiments.presets import PRESETS
from lowcurve.experiments.results import Result, load_results
from lowcurve.experiments.weights import FOLDER as WEIGHTS
from lowcurve.experiments.weights import read_manifest
from lowcurve.files import make_folder, read_bytes, write_atomic
from lowcurve.report.overview import folded_lines, overview
from lowcurve.report.plots import draw_curves
from lowcurve.report.summary import in_short
from lowcurve.report.tables import csv_text, latex_table, markdown_body, markdown_table, number_text

MARKER = "<!-- below this line: made by `lowcurve report` -->"
FORMS = {"md": markdown_table, "tex": latex_table, "csv": csv_text}


def write_result(result: Result, folder: Path) -> list[Path]:
    """Write `folder`/EXPERIMENT.{md,tex,csv} and figures; return the paths."""
    make_folder(folder)
    written = []
    for ending, form in FORMS.items():
        path = folder / f"{result.experiment}.{ending}"
        write_atomic(path, form(result))
        written.append(path)
    return written + draw_curves(result, folder)


def write_index(folder: Path) -> Path:
    """Write `folder`/README.md."""
    path = folder / "README.md"
    write_atomic(path, index(folder))
    return path


def index(folder: Path) -> str:
    """Return the page over all results: what is there above the marker, then claims, pictures, every table folded."""
    path = folder / "README.md"
    head = _by_hand(path) if path.exists() else "# Results\n\n"
    results = load_results(folder)
    short = in_short(list(results.values()))
    lines = [*(["## In short", "", *short, ""] if short else []), "## Claims", "", *overview(list(results.values()))]
    pictures = _pictures(results)
    if pictures:
        lines += ["", "## Pictures"]
    for source, result in pictures.items():
        shown = [_image(result, drawn, folder) for drawn in figure_files(source)]
        lines += ["", f"{text.markdown(f'{result.title}. {result.setting}')} (`{result.preset}`).", "", *shown]
    lines += ["", "## Tables"]
    for source, result in results.items():
        title = f"{result.experiment} ({result.preset}): {result.title}"
        lines += ["", *folded_lines(title, _details(source, result, folder, pictured=source in pictures))]
    lines += _weights(folder)
    return head + MARKER + "\n\n" + "\n".join(lines) + "\n"


def _pictures(results: Mapping[Path, Result]) -> dict[Path, Result]:
    """Return for each figure the result with the largest preset that has drawn it, in the order of the paper."""
    size = {name: position for position, name in enumerate(PRESETS)}
    chosen: dict[str, Path] = {}
    for source in sorted(results, key=lambda source: size.get(results[source].preset, -1)):
        if figure_files(source):
            chosen[results[source].experiment] = source
    order = {name: position for position, name in enumerate(EXPERIMENTS)}
    return {
        source: results[source]
        for name, source in sorted(chosen.items(), key=lambda item: order.get(item[0], len(order)))
    }


def _details(source: Path, result: Result, folder: Path, pictured: bool) -> list[str]:
    place = quote(source.relative_to(folder).with_suffix("").as_posix())
    drawn = [] if pictured else [_image(result, path, folder) for path in figure_files(source)]
    files = f"Files: [JSON]({place}.json), [CSV]({place}.csv), [LaTeX]({place}.tex)."
    return [*markdown_body(result), "", *drawn, *([""] if drawn else []), files]


def _image(result: Result, path: Path, folder: Path) -> str:
    return f"![{text.markdown(result.title)}]({quote(path.relative_to(folder).as_posix())})"


def _weights(folder: Path) -> list[str]:
    """Return a folded table of the final weights that are kept beside the results."""
    kept = read_manifest(folder)
    if not kept:
        return []
    head = ["", "| run | accuracy (%) | SHA-256 of the weights |", "|---|--:|---|"]
    rows = [
        f"| [{text.markdown(name)}]({WEIGHTS}/{quote(name)}) | {number_text(100 * one['accuracy'])} | "
        f"{text.markdown_code(one['sha256'])} |"
        for name, one in kept.items()
    ]
    use = (
        "`lowcurve measure`, `attack`, `certify` and `lc.load` take each of these folders as a run; the digests of the "
        f"samples that each was trained and tested on are in [the manifest]({WEIGHTS}/manifest.json). Weights of "
        "other runs are not kept: `lowcurve train` makes them again from PRESET/recipes/ and the same samples, with "
        "other last digits on another kind of machine."
    )
    return ["", "## Weights", "", *folded_lines(f"Final weights of {len(kept)} runs", [use, *head, *rows])]


def _by_hand(path: Path) -> str:
    """Return what stands above the marker; what a link leads to is not copied."""
    try:
        if path.is_symlink():
            raise OSError(None, "it is a link")
        return read_bytes(path).decode().partition(MARKER)[0]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {getattr(error, 'strerror', 0) or error}; move it away") from None


def figure_files(source: Path) -> list[Path]:
    """Return the pictures that were drawn of the result in the file `source`."""
    return [path for name in ("", "-boundaries") if (path := source.with_name(f"{source.stem}{name}.png")).is_file()]

"""Write a result in every form: Markdown, LaTeX and CSV beside its JSON, and its figures."""

from pathlib import Path

from lowcurve.experiments.results import Result, load_results
from lowcurve.files import write_atomic
from lowcurve.report.plots import draw_curves
from lowcurve.report.tables import csv_text, latex, markdown

MARKER = "<!-- below this line: made by `lowcurve report` -->"
FORMS = {"md": markdown, "tex": latex, "csv": csv_text}


def write_result(result: Result, folder: Path) -> list[Path]:
    """Write `folder`/EXPERIMENT.{md,tex,csv} and figures; return the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for ending, form in FORMS.items():
        path = folder / f"{result.experiment}.{ending}"
        write_atomic(path, form(result))
        written.append(path)
    return written + draw_curves(result, folder)


def write_index(folder: Path) -> Path:
    """Write `folder`/README.md: what is there above the marker stays, below it come the tables of all results."""
    path = folder / "README.md"
    head = path.read_text().partition(MARKER)[0] if path.is_file() else "# Results\n\n"
    tables = []
    for source, result in load_results(folder).items():
        place = source.relative_to(folder).with_suffix("")
        text = markdown(result).replace("## ", f"## {result.experiment} ({result.preset}): ", 1)
        pictures = [f"![{result.title}]({path.relative_to(folder).as_posix()})" for path in figures(source)]
        tables += [text, *pictures, f"Files: [JSON]({place}.json), [CSV]({place}.csv), [LaTeX]({place}.tex).", ""]
    write_atomic(path, head + MARKER + "\n\n" + "\n".join(tables))
    return path


def figures(source: Path) -> list[Path]:
    """Return the pictures that were drawn of the result in the file `source`."""
    return [path for name in ("", "-boundaries") if (path := source.with_name(f"{source.stem}{name}.png")).is_file()]

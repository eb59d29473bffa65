"""Write a result in every form: Markdown, LaTeX and CSV beside its JSON, and its figures."""

from pathlib import Path
from urllib.parse import quote

from lowcurve import text
from lowcurve.errors import UserError
from lowcurve.experiments.results import Result, load_results
from lowcurve.files import make_folder, read_bytes, write_atomic
from lowcurve.report.plots import draw_curves
from lowcurve.report.tables import csv_text, latex, markdown

MARKER = "<!-- below this line: made by `lowcurve report` -->"
FORMS = {"md": markdown, "tex": latex, "csv": csv_text}


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
    """Write `folder`/README.md: what is there above the marker stays, below it come the tables of all results."""
    path = folder / "README.md"
    head = _by_hand(path) if path.exists() else "# Results\n\n"
    tables = []
    for source, result in load_results(folder).items():
        place = quote(source.relative_to(folder).with_suffix("").as_posix())
        table = markdown(result).replace("## ", f"## {result.experiment} ({result.preset}): ", 1)
        title = text.markdown(result.title)
        pictures = [f"![{title}]({quote(path.relative_to(folder).as_posix())})" for path in figures(source)]
        tables += [table, *pictures, f"Files: [JSON]({place}.json), [CSV]({place}.csv), [LaTeX]({place}.tex).", ""]
    write_atomic(path, head + MARKER + "\n\n" + "\n".join(tables))
    return path


def _by_hand(path: Path) -> str:
    """Return what stands above the marker; what a link leads to is not copied."""
    try:
        if path.is_symlink():
            raise OSError(None, "it is a link")
        return read_bytes(path).decode().partition(MARKER)[0]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {getattr(error, 'strerror', 0) or error}; move it away") from None


def figures(source: Path) -> list[Path]:
    """Return the pictures that were drawn of the result in the file `source`."""
    return [path for name in ("", "-boundaries") if (path := source.with_name(f"{source.stem}{name}.png")).is_file()]

"""Write a result in every form: Markdown, LaTeX and CSV beside its JSON, and its figures."""

from pathlib import Path

from lowcurve.experiments.results import Result
from lowcurve.report.plots import draw_curves
from lowcurve.report.tables import csv_text, latex, markdown
from lowcurve.training.files import write_atomic

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

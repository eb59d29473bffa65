"""`lowcurve report`: results as Markdown, LaTeX, CSV, figures and one HTML page."""

from pathlib import Path
from typing import Annotated

import typer


def report(
    folders: Annotated[list[Path], typer.Argument(help="Run folders, or folders with results of reproduce or demo.")],
    output: Annotated[Path, typer.Option(help="The page to write, or a folder for it.")] = Path("report.html"),
) -> None:
    """Write one HTML page of your runs, or of results, which also become Markdown, LaTeX, CSV and figures.

    Of runs it shows what is there, side by side: training, and what measure, attack and certify have found.
    The page needs no network: tables sort, curves tell their values, and every number names its command.
    """
    from lowcurve.experiments.results import load_results
    from lowcurve.report.own import sort_out
    from lowcurve.report.page import write_page
    from lowcurve.report.write import write_index, write_result
    from lowcurve.text import console as plain_console
    from lowcurve.text import one_line

    console = plain_console()
    results, own = sort_out(folders)
    for folder in results:
        for source, result in load_results(folder).items():
            for path in write_result(result, source.parent):
                console.print(one_line(f"wrote {path}"), style="dim", soft_wrap=True)
        console.print(one_line(f"wrote {write_index(folder)}"), style="dim", soft_wrap=True)
    is_folder = output.is_dir() or not output.suffix
    page = write_page(results, output / "report.html" if is_folder else output, own)
    console.print(one_line(f"Report: {page.resolve()}"), style="bold", soft_wrap=True)

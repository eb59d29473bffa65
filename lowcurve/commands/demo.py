"""`lowcurve demo`: from nothing to a finished report in minutes."""

from pathlib import Path
from typing import Annotated

import typer

from lowcurve.commands import options


def demo(
    output: Annotated[
        Path, typer.Option(callback=options.folder, help="Where runs and the report are written.")
    ] = Path("runs/demo"),
    jobs: Annotated[int, typer.Option(min=1, max=1024, help="Runs side by side.")] = 2,
    browser: Annotated[bool, typer.Option(help="Open the report when it is done.")] = False,
) -> None:
    """Train four methods on bundled digits, measure, attack, certify, and write one HTML page.

    Training takes less than a minute on two free cores, measuring and attacking a few more; run it again to go on after
    an interruption.
    """
    import time

    from lowcurve.errors import UserError
    from lowcurve.experiments.demo import requests
    from lowcurve.experiments.reproduce import reproduce_all
    from lowcurve.report.page import write_page
    from lowcurve.report.terminal import print_result
    from lowcurve.report.write import write_result
    from lowcurve.text import console as plain_console
    from lowcurve.text import one_line

    console, started = plain_console(), time.perf_counter()
    results = output / "results"
    failures: dict[str, str] = {}
    console.print("Training standard, LCNN, GradReg and LCNN + GradReg on 8×8 digits, and small nets on two moons.")
    asked = requests(output, results, jobs)
    done = list(reproduce_all(asked, lambda line: console.print(one_line(line), soft_wrap=True), failures))
    for result in done:
        write_result(result, results / result.preset)
    print_result(console, done[0])
    page = write_page([results], output / "report.html")
    seconds = time.perf_counter() - started
    console.print(f"\nReport: {one_line(page.resolve())}  ({seconds:.0f} s)", style="bold", soft_wrap=True)
    if browser:
        typer.launch(page.resolve().as_uri())
    if failures:
        raise UserError(f"{len(failures)} runs failed: {'; '.join(failures.values())}")

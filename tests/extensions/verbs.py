"""What an extension goes through once a run of it is trained: measured, certified (which attacks too) and reported."""

from pathlib import Path

from typer.testing import CliRunner

from lowcurve.cli import app
from lowcurve.training.runs import Run

VERBS = (("measure", "--stability", "4"), ("certify",))


def evaluated_and_reported(run: Run, *verbs: tuple[str, ...]) -> str:
    """Give a run to the verbs and return the page that `report` makes of it."""
    page = Path(run.folder).parent / "page.html"
    commands = [(verb, str(run.folder), "--samples", "8", *rest) for verb, *rest in verbs or VERBS]
    for command in (*commands, ("report", str(run.folder), "--output", str(page))):
        shown = CliRunner().invoke(app, list(command))
        assert shown.exit_code == 0, (command, shown.output, shown.exception)
    return page.read_text()

"""`lowcurve train`: train a recipe, or go on with a run that was stopped."""

import logging
import os
import sys
from pathlib import Path
from typing import Annotated

import typer


class _Lines(logging.Handler):
    """Log lines on the standard error of the moment: a progress bar puts them above itself."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one line."""
        sys.stderr.write(self.format(record) + "\n")


def train(
    recipe: Annotated[Path, typer.Argument(help="A recipe (TOML), or config.toml of an earlier run.")],
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="Override a value, such as train.epochs=20; repeatable.")
    ] = None,
    source: Annotated[
        str | None,
        typer.Option("--from", help="Fine-tune this run or package:factory instead of a new network."),
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Folder in which the run's folder is made.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where the data sets are; default $LOWCURVE_DATA.")] = None,
    resume: Annotated[str, typer.Option(help="auto: go on where the run was stopped. never: refuse.")] = "never",
) -> None:
    """Train a network by one of the methods; the run's folder holds everything that came of it."""
    from lowcurve.errors import unknown_name
    from lowcurve.training.config import read_config
    from lowcurve.training.loop import train as run_training

    if resume not in ("auto", "never"):
        raise unknown_name("value of --resume", resume, ("auto", "never"))
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[_Lines()])
    logging.getLogger("lowcurve").setLevel(logging.INFO)
    paths = {"output": output, "data.dir": data_dir, "model.from": source}
    given = [f"{key}={str(value)!r}" for key, value in paths.items() if value is not None]
    run = run_training(read_config(recipe, [*given, *(changes or [])]), resume="auto" if resume == "auto" else "never")
    if os.environ.get("RANK", "0") == "0":
        summary = run.summary
        typer.echo(f"{run.folder}: test accuracy {100 * summary['accuracy']:.2f} % in {summary['seconds']:.0f} s")

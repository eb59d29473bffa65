"""`lowcurve train`: train a recipe, or go on with a run that was stopped."""

import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lowcurve.commands import options

if TYPE_CHECKING:
    from lowcurve.training.config import Config


class _Lines(logging.Handler):
    """Log lines on the standard error of the moment: a progress bar puts them above itself."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one line."""
        sys.stderr.write(self.format(record) + "\n")


def train(
    recipe: Annotated[
        Path, typer.Argument(help="DATA-MODEL-METHOD, a recipe (TOML), or config.toml of an earlier run.")
    ],
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="Override a value, such as train.epochs=20; repeatable.")
    ] = None,
    source: Annotated[
        str | None,
        typer.Option("--from", help="Fine-tune this run or package:factory instead of a new network."),
    ] = None,
    output: options.Output = None,
    data_dir: options.DataDir = None,
    resume: Annotated[str, typer.Option(help="auto: go on where the run was stopped. never: refuse.")] = "never",
    trust: options.Trust = None,
) -> None:
    """Train a network by one of the methods; the run's folder holds everything that came of it."""
    from lowcurve.training.config import read_config
    from lowcurve.training.loop import train as run_training

    options.choice(("auto", "never"), resume, "--resume")
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[_Lines()])
    logging.getLogger("lowcurve").setLevel(logging.INFO)
    paths = {"output": output, "data.dir": data_dir, "model.from": source}
    given = [f"{key}={str(value)!r}" for key, value in paths.items() if value is not None]
    config = read_config(recipe, [*given, *(changes or [])])
    if trust is None and source is None and _is_of_a_run(recipe):
        _refuse_names_of_files(config, read_config(recipe), recipe)
    run = run_training(config, resume="auto" if resume == "auto" else "never", factory=trust)
    if os.environ.get("RANK", "0") == "0":
        summary = run.summary
        typer.echo(f"{run.folder}: test accuracy {100 * summary['accuracy']:.2f} % in {summary['seconds']:.0f} s")


def _is_of_a_run(recipe: Path) -> bool:
    """Whether a recipe is a file of a run, perhaps somebody else's, and not one that its user wrote."""
    marks = ("environment.json", "summary.json", "model.safetensors", "checkpoints")
    return recipe.name == "config.toml" or any((recipe.parent / mark).exists() for mark in marks)


def _refuse_names_of_files(config: "Config", written: "Config", recipe: Path) -> None:
    """Refuse to import what only the file of a run names; a name on the command line is the user's own."""
    from lowcurve.factory import refuse_foreign
    from lowcurve.training.network import own_factory

    name = own_factory(config)
    if name is not None and name == own_factory(written):
        raise refuse_foreign(name, recipe)

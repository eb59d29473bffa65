"""`lowcurve train`: train a recipe, or go on with a run that was stopped."""

import logging
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
        Path | None,
        typer.Argument(
            help="DATA-MODEL-METHOD, a recipe (TOML), or config.toml of an earlier run. "
            "Without it --from RUN is fine-tuned on its own data."
        ),
    ] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="Override a value, such as train.epochs=20; repeatable.")
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--from", help="Fine-tune this run, package:factory, hf:FOLDER or timm:NAME instead of a new network."
        ),
    ] = None,
    only: Annotated[str | None, typer.Option(help="smoothness: train β and γ alone, all weights stay.")] = None,
    output: options.Output = None,
    data_dir: options.DataDir = None,
    resume: Annotated[str, typer.Option(help="auto: go on where the run was stopped. never: refuse.")] = "never",
    trust: options.Trust = None,
) -> None:
    """Train a network by one of the methods; the run's folder holds everything that came of it."""
    from lowcurve.training.config import read_config
    from lowcurve.training.distributed import place
    from lowcurve.training.loop import train as run_training

    options.choose(("auto", "never"), resume, "--resume")
    if only is not None:
        options.choose(("smoothness", "everything"), only, "--only")
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[_Lines()])
    logging.getLogger("lowcurve").setLevel(logging.INFO)
    paths = {"output": output, "data.dir": data_dir, "model.from": source, "train.only": only}
    given = [f"{key}={str(value)!r}" for key, value in paths.items() if value is not None]
    given += changes or []
    config = _fine_tuning(source, given) if recipe is None else read_config(recipe, given)
    if recipe is not None and trust is None and source is None and _is_of_a_run(recipe):
        _refuse_names_of_files(config, read_config(recipe), recipe)
    run = run_training(config, resume="auto" if resume == "auto" else "never", factory=trust)
    if place()[0] == 0:
        accuracy, seconds = run.summary["accuracy"], run.summary["seconds"]
        typer.echo(f"{run.folder}: {config.data.judged} accuracy {100 * accuracy:.2f} % in {seconds:.0f} s")


def _fine_tuning(source: str | None, changes: list[str]) -> "Config":
    """Return the recipe that makes the network of a run smooth, on the data and in the batches of that run."""
    from lowcurve.errors import UserError
    from lowcurve.training.fine_tuning import fine_tuning_of

    if source is None or not Path(source).is_dir():
        raise UserError(
            "expected a recipe, such as cifar10-resnet18-lcnn, or --from RUN alone to fine-tune that run; for a model "
            "of your own name the data too: lowcurve train cifar10-fine-tune --from package:factory"
        )
    return fine_tuning_of(Path(source), changes)


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

"""`lowcurve reproduce`: a table or figure of the paper, by name."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lowcurve.commands import options
from lowcurve.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from lowcurve.experiments.request import Request


def reproduce(
    name: Annotated[str, typer.Argument(help="An experiment, such as table-geometry; `all`; or `list`.")],
    preset: Annotated[str, typer.Option(help="digits (minutes), cpu (hours), long (days) or paper (GPUs).")] = "digits",
    data: Annotated[str | None, typer.Option(help="Another data set than the preset's.")] = None,
    data_dir: options.DataDir = None,
    rows: Annotated[str, typer.Option(help="Only these rows, comma-separated.")] = "",
    seeds: Annotated[str, typer.Option(help="Other seeds than the preset's, comma-separated.")] = "",
    overrides: Annotated[list[str] | None, typer.Option("--set", help="Change every run: train.epochs=3.")] = None,
    output: Annotated[Path, typer.Option(callback=options.folder, help="Where runs are kept.")] = Path("runs"),
    results: Annotated[Path, typer.Option(callback=options.folder, help="Where results are written.")] = Path(
        "results"
    ),
    executor: Annotated[str, typer.Option(help="local, slurm, or here (in this process).")] = "local",
    jobs: Annotated[int, typer.Option(min=1, max=1024, help="Runs side by side.")] = 2,
    slurm: Annotated[list[str] | None, typer.Option(help="Job setting, such as partition=gpu.")] = None,
    skip_recorded: Annotated[
        bool, typer.Option(help="Leave out runs whose numbers are on record in --results.")
    ] = False,
    keep_weights: Annotated[
        bool, typer.Option(help="Copy final weights to the folder `weights` in --results.")
    ] = False,
    reuse_weights: Annotated[
        bool, typer.Option(help="Where --results has a run's weights, measure those instead of training it.")
    ] = False,
    train_only: Annotated[bool, typer.Option(help="Train the runs, measure later.")] = False,
    show: Annotated[bool, typer.Option(help="Run nothing, show what is there.")] = False,
) -> None:
    """Train, measure and print a table of the paper beside the paper's numbers, with a verdict per claim.

    Runs that other tables share are trained once; run the command again to go on after an interruption.
    """
    from lowcurve import text
    from lowcurve.experiments.request import request, request_all
    from lowcurve.report.terminal import list_experiments
    from lowcurve.training.toml import parse_pairs

    console = text.console()
    if name == "list":
        list_experiments(console)
        return
    settings = {
        "output": output,
        "results": results,
        "data": data,
        "data_dir": data_dir,
        "rows": options.names(rows, "--rows") if rows else (),
        "seeds": options.whole_numbers(seeds, "--seeds") if seeds else (),
        "overrides": parse_pairs(overrides or []),
        "executor": options.choose(("local", "slurm", "here"), executor, "--executor"),
        "jobs": jobs,
        "slurm": parse_pairs(slurm or []),
        "measure": not train_only,
        "skip_recorded": skip_recorded,
    }
    asked = request_all(preset, **settings) if name == "all" else [request(name, preset, **settings)]
    if reuse_weights:
        _reuse_weights(console, results, asked)
    failures = _run(console, asked, run=not show)
    if keep_weights:
        _keep_weights(console, results, asked)
    if failures:
        raise UserError(f"{len(failures)} runs failed; run the same command again: {', '.join(failures)}")


def _run(console: "Console", asked: "list[Request]", *, run: bool) -> dict[str, str]:
    """Print and write each result as it is done; return the errors of runs that failed, by name."""
    from lowcurve.experiments.reproduce import reproduce_all
    from lowcurve.report.terminal import print_result
    from lowcurve.report.write import write_result
    from lowcurve.text import one_line

    failures: dict[str, str] = {}
    for result in reproduce_all(asked, lambda line: console.print(one_line(line)), failures, run=run):
        print_result(console, result)
        for path in write_result(result, asked[0].records):
            console.print(one_line(f"wrote {path}"), style="dim", soft_wrap=True)
    return failures


def _reuse_weights(console: "Console", results: Path, asked: "list[Request]") -> None:
    from lowcurve.experiments import weights
    from lowcurve.text import one_line

    for name in weights.reuse_weights(results, [planned for one in asked for planned in one.grid()]):
        console.print(one_line(f"weights of {name}: from {results / weights.FOLDER}"), style="dim", soft_wrap=True)


def _keep_weights(console: "Console", results: Path, asked: "list[Request]") -> None:
    from lowcurve.experiments import weights
    from lowcurve.text import one_line

    kept = weights.keep_weights(results, [planned for one in asked for planned in one.grid(whole=True)])
    console.print(one_line(f"weights of {len(kept)} runs: {results / weights.FOLDER}"), style="dim", soft_wrap=True)

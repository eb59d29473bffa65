"""The verb `data`: list the data sets, check their files, fetch the official ones."""

from pathlib import Path
from typing import Annotated

import typer

from lowcurve.commands import options

app = typer.Typer(help="List, check and fetch data sets.", no_args_is_help=True)

_HELP = "Where data sets lie.  [default: $LOWCURVE_DATA, else the cache]"
DataDir = Annotated[Path | None, typer.Option(callback=options.existing, help=_HELP)]
NewDataDir = Annotated[Path | None, typer.Option(callback=options.folder, help=_HELP)]


@app.command("list")
def list_datasets(data_dir: DataDir = None) -> None:
    """Show every data set that has a name, and whether its files are here."""
    from rich.table import Table

    from lowcurve.data import DATASETS, PATHS, data_directory, find
    from lowcurve.text import console as plain_console
    from lowcurve.text import one_line

    table = Table("name", "title", "sample", "classes", "train/test", "here", box=None, header_style="bold")
    for name, source in DATASETS.items():
        found = None if source.read else find(name, data_dir)
        where = "embedded" if source.read else found.layout if found else "no"
        shape = "×".join(map(str, source.input_size))
        sizes = "/".join(f"{size:,}" for size in source.size)
        table.add_row(name, source.title, shape, str(len(source.class_names)), sizes, where)
    for kind in PATHS:
        table.add_row(f"{kind}:PATH", "your own images", "any", "any", "any", "")
    console = plain_console()
    console.print(table)
    place = f"Data directory: {one_line(data_directory(data_dir))}"
    console.print(f"\n{place}; `lowcurve data fetch NAME` fills it.", soft_wrap=True)


@app.command()
def check(
    names: Annotated[list[str] | None, typer.Argument(help="Data sets; all that are here by default.")] = None,
    data_dir: DataDir = None,
) -> None:
    """Read data sets completely: checksums of official files, shapes, labels, samples per class."""
    from lowcurve.data import DATASETS, check_name, find
    from lowcurve.data.check import check_dataset
    from lowcurve.errors import UserError

    for name in names or ():
        check_name(name)
    failures = 0
    for name in names or [name for name, source in DATASETS.items() if source.read or find(name, data_dir)]:
        try:
            _say("ok    ", "green", f"{name}: {check_dataset(name, data_dir)}")
        except UserError as error:
            failures += 1
            _say("fail  ", "red", f"{name}: {error}")
    if failures:
        raise typer.Exit(1)


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="cifar10, cifar100, svhn or fashion-mnist.")],
    data_dir: NewDataDir = None,
    mirror: Annotated[str | None, typer.Option(help="Address of a folder with the same files.")] = None,
) -> None:
    """Download official files: resumed where they broke off, checked against the published checksums."""
    from lowcurve.data.fetch import fetch as fetch_dataset

    for path in fetch_dataset(name, data_dir, mirror):
        _say("ok  ", "green", str(path))


def _say(mark: str, color: str, line: str) -> None:
    from rich.text import Text

    from lowcurve.text import console, one_line

    console(soft_wrap=True).print(Text.assemble((mark, color), one_line(line)))

"""The verbs of the command line, one file each. These files import typer and the standard library only."""

from collections.abc import Callable

import typer

from lowcurve.commands import data, train

VERBS: dict[str, Callable[..., None] | typer.Typer] = {
    "train": train.train,
    "data": data.app,
}

"""The verbs of the command line, one file each. These files import typer and the standard library only."""

from collections.abc import Callable

import typer

from lowcurve.commands import data, reproduce, train

VERBS: dict[str, Callable[..., None] | typer.Typer] = {
    "train": train.train,
    "reproduce": reproduce.reproduce,
    "data": data.app,
}

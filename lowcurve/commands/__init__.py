"""The verbs of the command line, one file each. These files import typer and the standard library only."""

from collections.abc import Callable

import typer

from lowcurve.commands import cite, convert, data, measure, reproduce, train

VERBS: dict[str, Callable[..., None] | typer.Typer] = {
    "train": train.train,
    "measure": measure.measure,
    "convert": convert.convert,
    "reproduce": reproduce.reproduce,
    "data": data.app,
    "cite": cite.cite,
}

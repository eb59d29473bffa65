"""The verbs of the command line, one file each. These files import typer and the standard library only."""

from collections.abc import Callable

import typer

from lowcurve.commands import (
    attack,
    certify,
    cite,
    convert,
    data,
    demo,
    doctor,
    measure,
    report,
    reproduce,
    train,
    tune,
)

VERBS: dict[str, Callable[..., None] | typer.Typer] = {
    "demo": demo.demo,
    "train": train.train,
    "tune": tune.tune,
    "measure": measure.measure,
    "attack": attack.attack,
    "certify": certify.certify,
    "convert": convert.convert,
    "reproduce": reproduce.reproduce,
    "report": report.report,
    "data": data.app,
    "doctor": doctor.doctor,
    "cite": cite.cite,
}

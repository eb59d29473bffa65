"""The options that verbs share: one name, one help text and one grammar each, read before anything is loaded."""

import math
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lowcurve.errors import UserError, unknown_name

if TYPE_CHECKING:
    from rich.console import Console

LARGEST = 2**31 - 1  # of numbers that are counted or seed a generator
LONGEST = 200  # characters of a text in a message


def positive(value: float | None) -> float | None:
    """Refuse a number that is not finite and above 0."""
    if value is not None and not 0 < value < math.inf:
        raise UserError(f"expected a number above 0, got {value}")
    return value


def folder(path: Path | None) -> Path | None:
    """Refuse a folder for output that cannot be made or written to, before any work is done for it."""
    if path is None:
        return None
    try:
        there = Path(os.path.abspath(path))  # noqa: PTH100 (resolve() would follow links)
        while not there.exists():
            there = there.parent
        usable = there.is_dir() and os.access(there, os.W_OK)
    except (OSError, ValueError) as error:  # too long a name, a null character
        raise UserError(f"expected a folder, got {quoted(path)}: {error}") from None
    if not usable or not str(path).strip() or "\0" in str(path):
        raise UserError(f"cannot write to {quoted(path)}: expected a folder that exists or can be made; choose another")
    return path


def existing(path: Path | None) -> Path | None:
    """Refuse a folder for input that is not there."""
    try:
        if path is None or path.is_dir():
            return path
    except (OSError, ValueError):
        pass
    raise UserError(f"expected a folder that exists, got {quoted(path)}")


def factory(name: str | None) -> str | None:
    """Refuse what cannot be the name of a function or of a library's model."""
    if name is not None and not re.fullmatch(r"\w[\w.]*:\w+|(hf|timm):.+", name):
        raise UserError(f"expected package.module:factory, hf:FOLDER or timm:NAME, got {quoted(name)}")
    return name


Target = Annotated[
    str,
    typer.Argument(
        help="A run folder; package:factory, a function that returns a model; or hf:FOLDER, timm:NAME[@weights]."
    ),
]
Data = Annotated[str | None, typer.Option(help="Data set; default: the one that the run was trained on.")]
DataDir = Annotated[
    Path | None, typer.Option(callback=existing, help="Where the data sets are; default $LOWCURVE_DATA.")
]
Trust = Annotated[
    str | None,
    typer.Option(
        callback=factory,
        help="package:factory that makes the run's network. Naming it here runs it; a run's files cannot.",
    ),
]
Samples = Annotated[str, typer.Option(help="Samples of a split: a number, a share such as 0.1, or all.")]
Seed = Annotated[
    int, typer.Option(min=0, max=LARGEST, help="Seed of the choice of samples and of everything that is random.")
]
Output = Annotated[
    Path | None, typer.Option(callback=folder, help="Folder for the files; default: one in the run's folder.")
]


def counted(least: int, help: str) -> Any:
    """Return an option that is a whole number from `least` on."""
    return typer.Option(min=least, max=LARGEST, help=help)


def above_zero(help: str) -> Any:
    """Return an option that is a number above 0."""
    return typer.Option(callback=positive, help=help)


def tell_output(console: "Console", folder: Path | None, what: str) -> None:
    """Say where a verb's files are, or how to keep `what` it has found."""
    from lowcurve.text import one_line

    advice = f"written: {folder}" if folder else f"add --output FOLDER to keep {what}"
    console.print(one_line(advice), style="dim", soft_wrap=True)


def quoted(text: object) -> str:
    """Quote what came, cut where it is long."""
    return repr(str(text)[:LONGEST])


def sample_count(text: str, option: str = "--samples") -> int | float | None:
    """Read a number of samples, a share of them, or all (None).

    >>> sample_count("500"), sample_count("0.1"), sample_count("all")
    (500, 0.1, None)
    """
    if text == "all":
        return None
    if re.fullmatch(r"[0-9]{1,9}", text) and int(text) >= 1:
        return int(text)
    if re.fullmatch(r"0?\.[0-9]+|1\.0*", text) and 0 < float(text) <= 1:
        return float(text)
    raise UserError(f"expected {option} as a number from 1 on, a share such as 0.1, or all, got {quoted(text)}")


def whole_numbers(text: str, option: str, least: int = 0) -> tuple[int, ...]:
    """Read whole numbers joined by commas.

    >>> whole_numbers("3,32,32", "--input-size")
    (3, 32, 32)
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"[0-9]{1,9}", part) and int(part) >= least for part in parts):
        raise UserError(
            f"expected {option} as whole numbers from {least} on, joined by commas, such as 3,32,32, got {quoted(text)}"
        )
    return tuple(map(int, parts))


def positive_numbers(text: str, option: str) -> tuple[float, ...]:
    """Read numbers above 0 joined by commas.

    >>> positive_numbers("0.05, 0.1", "--radii")
    (0.05, 0.1)
    """
    parts = [part.strip() for part in text.split(",")]
    number = r"([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?"
    if not all(re.fullmatch(number, part) and 0 < float(part) < math.inf for part in parts):
        raise UserError(f"expected {option} as numbers above 0, joined by commas, such as 0.1,0.2, got {quoted(text)}")
    return tuple(map(float, parts))


def choose(known: tuple[str, ...], text: str, option: str) -> str:
    """Return a text that is one of those known."""
    if text not in known:
        raise unknown_name(f"value of {option}", text[:LONGEST], known)
    return text


def norm_order(text: str) -> float:
    """Read a norm.

    >>> norm_order("2"), norm_order("inf")
    (2.0, inf)
    """
    if text not in ("2", "inf"):
        raise UserError(f"expected --norm as 2 or inf, got {quoted(text)}")
    return float(text)


def names(text: str, option: str) -> tuple[str, ...]:
    """Read names joined by commas.

    >>> names("pgd, square", "--attacks")
    ('pgd', 'square')
    """
    parts = tuple(part.strip() for part in text.split(","))
    if not all(parts):
        raise UserError(f"expected {option} as names joined by commas, got {quoted(text)}")
    return parts


def budgets(text: str, option: str = "--steps") -> dict[str, int]:
    """Read numbers by name.

    >>> budgets("square=1000,pgd=20")
    {'square': 1000, 'pgd': 20}
    """
    found = {}
    for entry in text.split(",") if text else []:
        name, _, value = entry.partition("=")
        if not name.strip() or not re.fullmatch(r"[0-9]{1,9}", value) or int(value) < 1:
            raise UserError(f"expected {option} such as square=1000,pgd=20, got {quoted(text)}")
        found[name.strip()] = int(value)
    return found

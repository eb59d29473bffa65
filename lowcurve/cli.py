"""The `lowcurve` command: one verb per file in `lowcurve.commands`; PyTorch is imported only when a verb runs."""

import os
import tempfile
import traceback
from typing import Annotated, NoReturn

import typer

from lowcurve import __version__
from lowcurve.commands import VERBS
from lowcurve.cores import settle
from lowcurve.errors import UserError
from lowcurve.text import one_line

BUG = 70  # the exit code of an internal error (EX_SOFTWARE of <sysexits.h>)

app = typer.Typer(
    name="lowcurve",
    help="Train, convert, measure, attack and certify low-curvature neural networks.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for name, verb in VERBS.items():
    if isinstance(verb, typer.Typer):
        app.add_typer(verb, name=name)
    else:
        app.command(name)(verb)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"lowcurve {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Train, convert, measure, attack and certify low-curvature neural networks."""


def main() -> None:
    """Run the command line; an error that the user can mend is one line and exit code 2, never a traceback."""
    settle()
    try:
        app()
    except UserError as error:
        _fail(str(error))
    except KeyboardInterrupt:
        typer.secho("stopped; run the same command again to go on", err=True)
        raise SystemExit(130) from None
    except OSError as error:  # a full disk, a file without permission, a folder that has gone
        _fail(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}")
    except Exception as error:
        if isinstance(error, MemoryError) or "allocate memory" in str(error) or "out of memory" in str(error):
            _fail(f"not enough memory: {error}; use a smaller model, batch or number of samples")
        _report_bug(error)


def _line(text: str) -> str:
    return " ".join(one_line(text).split())


def _fail(message: str) -> NoReturn:
    typer.secho(f"error: {_line(message)}", fg="red", err=True)
    raise SystemExit(2) from None


def _report_bug(error: Exception) -> NoReturn:
    """Keep the traceback in a file and say in one line where; no bad argument or file should lead here."""
    handle, path = tempfile.mkstemp(prefix="lowcurve-", suffix=".txt")
    with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write("".join(traceback.format_exception(error)))
    kind = type(error).__name__
    typer.secho(
        f"error: this is a bug in lowcurve, please report it with {path}: {_line(f'{kind}: {error}')}",
        fg="red",
        err=True,
    )
    raise SystemExit(BUG) from None


if __name__ == "__main__":
    main()

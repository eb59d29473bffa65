"""The `lowcurve` command: one verb per file in `lowcurve.commands`; PyTorch is imported only when a verb runs."""

import typer

from lowcurve.commands import VERBS
from lowcurve.errors import UserError
from lowcurve.text import plain

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


def main() -> None:
    """Run the command line; an error that the user can mend is a message, not a traceback."""
    try:
        app()
    except UserError as error:
        typer.secho("\n".join(map(plain, f"error: {error}".split("\n"))), fg="red", err=True)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        typer.secho("stopped; run the same command again to go on", err=True)
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()

"""Errors that a user can mend: the message says what was expected, what came and what to do."""

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(ValueError):
    """A mistake in an argument, a file or a model, not a bug; the command line prints it without a traceback."""


def unknown_name(kind: str, name: object, known: Iterable[str], near: str | None = None) -> UserError:
    """Describe a name that no table has, with the nearest one that it has; `near` is that where the caller knows it.

    >>> str(unknown_name("method", "lccn", ["lcnn", "relu"]))
    "unknown method 'lccn'; did you mean 'lcnn'? Known: lcnn, relu"
    """
    names = sorted(known)
    near = near if near is not None else next(iter(get_close_matches(str(name), names, n=1)), "")
    hint = f"; did you mean {near!r}?" if near else "."
    return UserError(f"unknown {kind} {name!r}{hint} Known: {', '.join(names)}")

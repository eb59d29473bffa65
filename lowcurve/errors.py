"""Errors that a user can mend: the message says what was expected, what came and what to do."""

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(ValueError):
    """A mistake in an argument, a file or a model, not a bug; the command line prints it without a traceback."""


def unknown_name(kind: str, name: object, known: Iterable[str]) -> UserError:
    """Describe a name that no table has, with the nearest one that it has.

    >>> str(unknown_name("method", "lccn", ["lcnn", "relu"]))
    "unknown method 'lccn'; did you mean 'lcnn'? Known: lcnn, relu"
    """
    names = sorted(known)
    near = get_close_matches(str(name), names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    return UserError(f"unknown {kind} {name!r}{hint} Known: {', '.join(names)}")

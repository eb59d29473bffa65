"""Progress bars: how far is it, how long will it take? Silent where standard error is no terminal."""

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
)

T = TypeVar("T")


def visible() -> bool:
    """Whether a bar has someone to look at it."""
    return sys.stderr.isatty() and "PYTEST_CURRENT_TEST" not in os.environ


@contextmanager
def bars() -> Iterator[Progress]:
    """Open a display for bars on standard error: `task = display.add_task(...)`, then `display.advance(task)`."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    with Progress(*columns, console=Console(stderr=True), disable=not visible(), transient=True) as display:
        yield display


def track(items: Iterable[T], description: str, total: int | None = None) -> Iterator[T]:
    """Iterate over `items` behind a progress bar.

    >>> list(track([1, 2], "counting"))
    [1, 2]
    """
    if total is None and hasattr(items, "__len__"):
        total = len(items)  # type: ignore[arg-type]
    with bars() as display:
        task = display.add_task(description, total=total, note="")
        for item in items:
            yield item
            display.advance(task)

"""Progress bars: how far is it, how long will it take? Silent where standard error is no terminal.

A bar is one line of a terminal of 80 columns: what is done, the bar, steps, time left, a note such as the loss. What
does not fit there goes on a line below it.
"""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from typing import TypeVar

from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

T = TypeVar("T")


def visible() -> bool:
    """Whether a bar has someone to look at it."""
    return sys.stderr.isatty() and "PYTEST_CURRENT_TEST" not in os.environ


class Bars(Progress):
    """Bars with lines below them: `display.add_task(…, note="loss 1.2", below="300 images/s")`."""

    def get_renderables(self) -> Iterable[RenderableType]:
        """Yield the bars, then what is below them."""
        yield self.make_tasks_table(self.tasks)
        for task in self.tasks:
            if task.visible and task.fields.get("below"):
                yield Text(f"  {task.fields['below']}", style="dim")


def make_bars(console: Console, disable: bool = False) -> Bars:
    """Return a display that fits the console: names are cut, and the bar takes what is left."""
    return Bars(
        SpinnerColumn(),
        TextColumn(
            "{task.description}", markup=False, table_column=Column(max_width=28, no_wrap=True, overflow="ellipsis")
        ),
        BarColumn(bar_width=None, table_column=Column(ratio=1, min_width=4)),
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        TimeRemainingColumn(table_column=Column(no_wrap=True)),
        TextColumn("{task.fields[note]}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")),
        console=console,
        disable=disable,
        transient=True,
        expand=True,
    )


@contextmanager
def bars() -> Iterator[Bars]:
    """Open a display for bars on standard error: `task = display.add_task(...)`, then `display.advance(task)`."""
    with make_bars(Console(stderr=True), disable=not visible()) as display:
        yield display


def track(
    items: Iterable[T],
    description: str,
    *,
    size: Callable[[T], int] = lambda item: 1,
    note: Callable[[T], str] = lambda item: "",
) -> Iterator[T]:
    """Iterate over `items` behind a progress bar that counts `size` for each, and shows its `note` while it is at work.

    >>> list(track([1, 2], "counting"))
    [1, 2]
    """
    total = sum(map(size, items)) if isinstance(items, Sized) else None
    with bars() as display:
        task = display.add_task(description, total=total, note="")
        for item in items:
            display.update(task, note=note(item))
            yield item
            display.advance(task, size(item))

"""A result in the terminal: the table, the paper's numbers in a second line, and the verdicts."""

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lowcurve.experiments import EXPERIMENTS
from lowcurve.experiments.presets import PRESETS
from lowcurve.experiments.results import Result
from lowcurve.report.tables import VERDICT_MARKS, has_paper, number_text, ours, with_interval
from lowcurve.text import one_line

COLORS = {"holds": "green", "does not hold": "red", "cannot tell": "yellow", "not measured": "dim"}


def print_result(console: Console, result: Result) -> None:
    """Print a table, partial or whole, and what became of each claim; columns that find no room come below."""
    blocks = _blocks(result, console.width)
    for place, columns in enumerate(blocks):
        console.print(_table(result, columns, first=place == 0, last=place + 1 == len(blocks)))
    for verdict in result.verdicts:
        mark, color = VERDICT_MARKS[verdict["verdict"]], COLORS[verdict["verdict"]]
        theirs = "" if verdict["paper"] is None else f", paper {number_text(verdict['paper'], digits=3)}"
        formula = f"{one_line(verdict['formula'])}: ours {with_interval(verdict, 3)}{theirs}"
        console.print(Text.assemble(" ", (mark, color), f" {one_line(verdict['text'])}  ", (formula, "dim")))


def _table(result: Result, columns: list[dict[str, Any]], first: bool, last: bool) -> Table:
    """Return a part of the table: the rows' names and some columns; the number of runs is in the last part."""
    title = Text(f"{one_line(result.title)}\n{one_line(result.setting) or 'no runs yet'}")
    table = Table(
        title=title if first else None,
        title_justify="left",
        caption="second lines: the paper's means" if last and has_paper(result) else None,
        caption_justify="left",
        box=SIMPLE_HEAD,
        collapse_padding=True,
        pad_edge=False,
    )
    table.add_column("method", no_wrap=True)
    for column in columns:
        table.add_column(Text(one_line(column["label"])), justify="right")
    if last:
        table.add_column("runs", justify="right", no_wrap=True)
    for row in result.rows:
        cells = [_cell(row, column) for column in columns]
        table.add_row(Text(row["key"]), *cells, *([str(len(row["runs"]))] if last else []))
    return table


def _blocks(result: Result, width: int) -> list[list[dict[str, Any]]]:
    """Return the columns in parts that a terminal has room for, each with one at least: half a number is none."""
    whole = width - max((len(row["key"]) for row in result.rows), default=0) - 10  # the column of runs, and margins
    blocks: list[list[dict[str, Any]]] = [[]]
    room = whole
    for column in result.columns:
        lines = [*column["label"].split(), *(line for row in result.rows for line in _lines(row, column))]
        needed = max(map(len, lines), default=0) + 2
        if blocks[-1] and needed > room:
            blocks.append([])
            room = whole
        blocks[-1].append(column)
        room -= needed
    return blocks


def _lines(row: dict[str, Any], column: dict[str, Any]) -> list[str]:
    """Return our number, and the paper's mean; a terminal is too narrow for both spreads."""
    printed = row["paper"].get(column["key"])
    return [ours(row, column), *([number_text(printed[0], digits=column["digits"])] if printed else [])]


def _cell(row: dict[str, Any], column: dict[str, Any]) -> Text:
    first, *second = _lines(row, column)
    return Text.assemble(first, *((f"\n{line}", "dim") for line in second))


def list_experiments(console: Console) -> None:
    """Print the names of experiments and presets."""
    table = Table("experiment", "what", "in the paper")
    for name, experiment in EXPERIMENTS.items():
        table.add_row(name, experiment.title, experiment.source)
    console.print(table)
    for preset in PRESETS.values():
        console.print(f"  --preset {preset.name:<7} {preset.about}", highlight=False)

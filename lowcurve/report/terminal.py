"""A result in the terminal: the table, the paper's numbers in a second line, and the verdicts."""

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lowcurve.experiments import EXPERIMENTS
from lowcurve.experiments.presets import PRESETS
from lowcurve.experiments.results import Result
from lowcurve.report.tables import VERDICT_MARKS, has_paper, number, ours
from lowcurve.text import plain

COLORS = {"holds": "green", "does not hold": "red", "cannot tell": "yellow", "not measured": "dim"}


def print_result(console: Console, result: Result) -> None:
    """Print a table, partial or whole, and what became of each claim."""
    table = Table(
        title=Text(f"{plain(result.title)}\n{plain(result.setting) or 'no runs yet'}"),
        title_justify="left",
        caption_justify="left",
        box=SIMPLE_HEAD,
        collapse_padding=True,
        pad_edge=False,
    )
    table.add_column("method", no_wrap=True)
    columns = _fitting(result, console.width)
    for column in columns:
        table.add_column(Text(plain(column["label"])), justify="right")
    table.add_column("runs", justify="right", no_wrap=True)
    for row in result.rows:
        cells = [_cell(row, column) for column in columns]
        table.add_row(Text(row["key"]), *cells, str(len(row["runs"])))
    remarks = ["second lines: the paper's means"] if has_paper(result) else []
    if left_out := len(result.columns) - len(columns):
        remarks.append(f"left out for want of room: {left_out} column{'s' * (left_out > 1)}")
    table.caption = "; ".join(remarks) or None
    console.print(table)
    for verdict in result.verdicts:
        mark, color = VERDICT_MARKS[verdict["verdict"]], COLORS[verdict["verdict"]]
        value = f"ours {number(verdict['ours'], digits=3)}, paper {number(verdict['paper'], digits=3)}"
        formula = f"{plain(verdict['formula'])}: {value}"
        console.print(Text.assemble(" ", (mark, color), f" {plain(verdict['text'])}  ", (formula, "dim")))


def _fitting(result: Result, width: int) -> list[dict[str, Any]]:
    """Return as many columns as a terminal has room for, the first at least: half a number is worse than none."""
    room = width - max((len(row["key"]) for row in result.rows), default=0) - 10  # the column of runs, and margins
    fitting: list[dict[str, Any]] = []
    for column in result.columns:
        lines = [*column["label"].split(), *(line for row in result.rows for line in _lines(row, column))]
        room -= max(map(len, lines), default=0) + 2
        if fitting and room < 0:
            break
        fitting.append(column)
    return fitting


def _lines(row: dict[str, Any], column: dict[str, Any]) -> list[str]:
    """Return our number, and the paper's mean; a terminal is too narrow for both spreads."""
    printed = row["paper"].get(column["key"])
    return [ours(row, column), *([number(printed[0], digits=column["digits"])] if printed else [])]


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

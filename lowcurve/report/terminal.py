"""A result in the terminal: the table, the paper's numbers in a second line, and the verdicts."""

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lowcurve.experiments import EXPERIMENTS
from lowcurve.experiments.presets import PRESETS
from lowcurve.experiments.results import Result
from lowcurve.report.tables import VERDICT_MARKS, has_paper, number, ours

COLORS = {"holds": "green", "does not hold": "red", "not measured": "dim"}


def print_result(console: Console, result: Result) -> None:
    """Print a table, partial or whole, and what became of each claim."""
    table = Table(title=f"{result.title}\n{result.setting or 'no runs yet'}", title_justify="left")
    table.add_column("method")
    for column in result.columns:
        table.add_column(column["label"], justify="right")
    table.add_column("runs", justify="right")
    for row in result.rows:
        cells = [_cell(row, column) for column in result.columns]
        table.add_row(row["key"], *cells, str(len(row["runs"])))
    if has_paper(result):
        table.caption = "second lines: the paper's means"
    console.print(table)
    for verdict in result.verdicts:
        mark, color = VERDICT_MARKS[verdict["verdict"]], COLORS[verdict["verdict"]]
        value = f"ours {number(verdict['ours'], digits=3)}, paper {number(verdict['paper'], digits=3)}"
        console.print(
            f" [{color}]{mark}[/] {verdict['text']}  [dim]{escape(verdict['formula'])}: {value}[/]", highlight=False
        )


def _cell(row: dict[str, Any], column: dict[str, Any]) -> str:
    """Print our number, and the paper's mean below it; a terminal is too narrow for both spreads."""
    printed = row["paper"].get(column["key"])
    return (
        f"{ours(row, column)}\n[dim]{number(printed[0], digits=column['digits'])}[/]" if printed else ours(row, column)
    )


def list_experiments(console: Console) -> None:
    """Print the names of experiments and presets."""
    table = Table("experiment", "what", "in the paper")
    for name, experiment in EXPERIMENTS.items():
        table.add_row(name, experiment.title, experiment.source)
    console.print(table)
    for preset in PRESETS.values():
        console.print(f"  --preset {preset.name:<7} {preset.about}", highlight=False)

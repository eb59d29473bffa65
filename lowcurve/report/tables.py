"""A result as a table: Markdown, LaTeX (booktabs) and CSV, ours with the paper's numbers beside them."""

import csv
import io
import re
from typing import Any

from lowcurve import text
from lowcurve.experiments.results import Result

VERDICT_MARKS = {"holds": "✓", "does not hold": "✗", "cannot tell": "?", "not measured": "–"}


def number_text(mean: float | None, std: float | None = None, digits: int = 2) -> str:
    """Print mean ± std with `digits` decimals; large numbers need none, missing ones are a dash.

    >>> number_text(77.4213, 0.104), number_text(6061.96), number_text(None), number_text(0.00123)
    ('77.42 ± 0.10', '6062', '–', '0.0012')
    """
    if mean is None:
        return "–"
    return _digits(mean, digits) + (f" ± {std:.{digits}f}" if std is not None else "")


def _digits(value: float, digits: int) -> str:
    if abs(value) >= 1000:
        return f"{value:.0f}"
    if value and abs(value) < 10**-digits:
        return f"{value:.2g}"
    return f"{value:.{digits}f}"


def with_interval(judged: dict[str, Any], digits: int) -> str:
    """Print our quantity of a claim with its 95 % interval.

    >>> with_interval({"ours": 0.1441, "low": 0.106, "high": 0.1803}, 3), with_interval({"ours": None}, 3)
    ('0.144 [0.106, 0.180]', '–')
    """
    return number_text(judged["ours"], digits=digits) + _brackets(judged, digits)


def _brackets(part: dict[str, Any], digits: int) -> str:
    low, high = part.get("low"), part.get("high")
    return "" if low is None or high is None else f" [{_digits(low, digits)}, {_digits(high, digits)}]"


def ours_in_full(row: dict[str, Any], column: dict[str, Any]) -> str:
    """Print our cell of a row with its 95 % interval."""
    cell = row["cells"].get(column["key"])
    return ours(row, column) + (_brackets(cell, column["digits"]) if cell else "")


def ours(row: dict[str, Any], column: dict[str, Any]) -> str:
    """Print our cell of a row."""
    cell = row["cells"].get(column["key"])
    return number_text(cell["mean"], cell["std"], column["digits"]) if cell else "–"


def paper(row: dict[str, Any], column: dict[str, Any]) -> str:
    """Print the paper's cell of a row."""
    found = row["paper"].get(column["key"])
    return number_text(found[0], found[1], column["digits"]) if found else "–"


def has_paper(result: Result) -> bool:
    """Whether the paper prints numbers for this table."""
    return any(row["paper"] for row in result.rows)


def runs(row: dict[str, Any]) -> str:
    """Print how many runs a row rests on."""
    return str(len(row["runs"]))


def markdown_table(result: Result) -> str:
    """Return the table, the paper's numbers in a second one, verdicts, and the command that makes it again."""
    return "\n".join([f"## {text.markdown(result.title)}", "", *markdown_body(result), ""])


def markdown_body(result: Result) -> list[str]:
    """Return the lines of `markdown_table` below its heading."""
    lines = [text.markdown(f"{result.source}; here {_where(result)}."), ""]
    lines += _grid(result, "ours", ours_in_full)
    if has_paper(result):
        lines += ["", "The paper's numbers:", "", *_grid(result, "paper", paper)]
    if result.verdicts:
        lines += ["", "| claim | as tested | ours | verdict | paper |", "|---|---|--:|---|--:|"]
        lines += [
            f"| {text.markdown(v['text'])}{_by(v)} | {text.markdown_code(v['formula'])} | "
            f"{with_interval(v, 3)} | {VERDICT_MARKS[v['verdict']]} {v['verdict']}{_seeds(v)} | "
            f"{number_text(v['paper'], digits=3)} |"
            for v in result.verdicts
        ]
    lines += ["", *(f"- {text.markdown(note)}" for note in result.notes)] if result.notes else []
    made = f"Made by {text.markdown_code(result.command)} ({text.markdown(_versions(result))})."
    return [*lines, "", made]


def _grid(result: Result, which: str, cell: Any) -> list[str]:
    head = ["method", *(text.markdown(column["label"]) for column in result.columns)] + (
        ["runs"] if which == "ours" else []
    )
    lines = ["| " + " | ".join(head) + " |", "|---|" + "--:|" * (len(head) - 1)]
    for row in result.rows:
        if (which == "paper" and not row["paper"]) or (which == "ours" and not row["cells"]):
            continue
        label = text.markdown(row["label"]) + (" *(ours)*" if row["ours"] else "")
        cells = [cell(row, column) for column in result.columns]
        lines.append("| " + " | ".join([label, *cells, *([runs(row)] if which == "ours" else [])]) + " |")
    return lines


def latex_table(result: Result) -> str:
    """Return a booktabs table, ours above the paper's where it has any."""
    columns = "l" + "r" * len(result.columns)
    lines = [r"\begin{tabular}{" + columns + "}", r"\toprule"]
    lines.append(" & ".join(["Model", *(text.latex(column["label"]) for column in result.columns)]) + r" \\")
    parts = [("measured", ours, "cells")] + ([("paper", paper, "paper")] if has_paper(result) else [])
    for title, cell, field in parts:
        heading = f"{title.capitalize()} ({_where(result)})" if field == "cells" else "As printed in the paper"
        lines += [r"\midrule", rf"\multicolumn{{{len(columns)}}}{{l}}{{\emph{{{text.latex(heading)}}}}} \\"]
        for row in result.rows:
            if row[field]:
                cells = [text.latex(word) for word in (row["label"], *(cell(row, column) for column in result.columns))]
                lines.append(" & ".join(cells) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def csv_text(result: Result) -> str:
    """Return one line per cell and seed: row, column, seed, value, the paper's mean and spread, the run."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["row", "column", "seed", "value", "paper_mean", "paper_std", "run"])
    for row in result.rows:
        run_of = {found[1]: name for name in row["runs"] if (found := re.search(r"-s(\d+)-[^-]*$", name))}
        for column in result.columns:
            mean, std = row["paper"].get(column["key"], (None, None))
            cell = row["cells"].get(column["key"])
            for seed, value in (cell["values"] if cell else {"": None}).items():
                writer.writerow([row["key"], column["key"], seed, value, mean, std, run_of.get(seed, "")])
    return buffer.getvalue()


def _where(result: Result) -> str:
    return result.setting or "no runs yet"


def _versions(result: Result) -> str:
    versions = result.environment
    return ", ".join(f"{name} {versions[name]}" for name in ("lowcurve", "torch", "python") if name in versions)


def _by(verdict: dict[str, Any]) -> str:
    return " *(our target)*" if verdict["source"] == "project" else ""


def _seeds(verdict: dict[str, Any]) -> str:
    count = len(verdict["seeds"])
    return f" ({verdict['seeds_that_agree']} of {count} seeds)" if count > 1 else ""

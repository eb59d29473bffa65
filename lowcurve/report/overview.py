"""What became of the paper's claims? One table of claims by preset, for a reader in a hurry.

A claim is found in the results of several presets by its table and its formula. Claims of the paper's main text come
first; those of its appendix, our own targets, and what nobody has measured yet are folded below.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import groupby
from typing import Any

from lowcurve import text
from lowcurve.experiments import EXPERIMENTS, experiment_of
from lowcurve.experiments.presets import PRESETS
from lowcurve.experiments.results import Result, tabulate
from lowcurve.report.tables import VERDICT_MARKS, number_text, with_interval

Judged = dict[str, Any]  # a verdict of a result
ALWAYS = ("digits", "cpu", "long")  # presets that have a column even where nothing is measured
SHORT = {"holds": "holds", "does not hold": "does not", "cannot tell": "cannot tell", "not measured": "not measured"}


@dataclass(frozen=True)
class ClaimRow:
    """A claim of a table, and what each preset says of it."""

    table: str
    claim: Judged
    by_preset: Mapping[str, Judged] = field(default_factory=dict)

    @property
    def measured(self) -> bool:
        """Whether any preset has numbers for it."""
        return any(judged["verdict"] != "not measured" for judged in self.by_preset.values())

    def verdict(self, preset: str) -> str:
        """What a preset says of it."""
        return str(self.by_preset[preset]["verdict"]) if preset in self.by_preset else "not measured"

    @property
    def place(self) -> str:
        """Where it is shown: in the main table, or folded."""
        experiment = _experiment(self.table)
        if self.claim["source"] == "project" or (experiment and experiment.source.startswith("Not in the paper")):
            return "ours"
        return "appendix" if experiment and experiment.source.startswith("Appendix") else "main"


def overview(results: Sequence[Result]) -> list[str]:
    """Return the lines of the table of the paper's claims, and of the folded tables after it."""
    presets, rows = _presets(results), _rows(results)
    settings = {(result.experiment, result.preset): result.setting for result in results}
    main = [row for row in rows if row.place == "main" and row.measured]
    lines = [_legend(), "", *_table(main, presets, settings, unprinted="in words")]
    folded = {
        "The appendix: other data, other networks, ablations, AutoAttack": [
            row for row in rows if row.place == "appendix"
        ],
        "Our own targets and studies, which the paper does not claim": [row for row in rows if row.place == "ours"],
    }
    for title, more in folded.items():
        if more := [row for row in more if row.measured]:
            lines += ["", *folded_lines(f"{title} ({len(more)} claims)", _table(more, presets, settings, "no number"))]
    if nowhere := [row for row in rows if not row.measured]:
        said = [f"- {text.markdown(row.table)}: {text.markdown(row.claim['text'])}" for row in nowhere]
        lines += ["", *folded_lines(f"Measured nowhere yet ({len(nowhere)} claims)", said)]
    return lines


def folded_lines(title: str, lines: Iterable[str]) -> list[str]:
    """Return lines of Markdown that a reader unfolds."""
    return [f"<details><summary>{escape(text.one_line(title))}</summary>", "", *lines, "", "</details>"]


def _legend() -> str:
    marks = "; ".join(f"{VERDICT_MARKS[verdict]} {SHORT[verdict]}" for verdict in SHORT)
    return (
        f"{marks}. A number is the ratio or the difference of two rows of a table, of accuracies in points; behind the "
        "claim stands what it must be. In brackets: the 95 % interval over test samples and seeds. A claim holds, or "
        "does not, where the whole interval is on one side of its threshold; else, and where a single seed was "
        "measured without keeping its samples, the numbers cannot tell. The column `paper` asks the same of the "
        "numbers that the paper prints."
    )


def _presets(results: Sequence[Result]) -> list[str]:
    """Return the presets that have a column: those of the package in their order, then others."""
    found = dict.fromkeys(result.preset for result in results)
    always = ALWAYS if any(name in PRESETS for name in found) else ()
    return [
        *(name for name in PRESETS if name in found or name in always),
        *(name for name in found if name not in PRESETS),
    ]


def _rows(results: Sequence[Result]) -> list[ClaimRow]:
    """Return every claim of every table, in the order of the paper."""
    known = any(result.preset in PRESETS for result in results)
    claims: dict[tuple[str, str], Judged] = {}
    for name, experiment in EXPERIMENTS.items() if known else ():
        if experiment.apart:  # a study that nobody has run says nothing
            continue
        claims |= {(name, judged["formula"]): judged for judged in tabulate(experiment, {}, {})["verdicts"]}
    by_preset: dict[tuple[str, str], dict[str, Judged]] = {}
    for result in results:
        for judged in result.verdicts:
            key = result.experiment, judged["formula"]
            claims.setdefault(key, judged)
            by_preset.setdefault(key, {})[result.preset] = judged
    order: dict[str | None, int] = {name: position for position, name in enumerate(EXPERIMENTS)}
    rows = [ClaimRow(table, claim, by_preset.get((table, formula), {})) for (table, formula), claim in claims.items()]
    return sorted(rows, key=lambda row: (order.get(experiment_of(row.table), len(order)), row.table))


def _experiment(table: str) -> Any:
    return EXPERIMENTS.get(experiment_of(table) or "")


def _table(
    rows: Sequence[ClaimRow], presets: Sequence[str], settings: Mapping[tuple[str, str], str], unprinted: str
) -> list[str]:
    """Return a line per claim, below a line for its table and what each preset made that on, below counts over all.

    Claims for which the paper prints no numbers are counted as `unprinted`.
    """
    said = [row.claim["paper_verdict"] for row in rows]
    counts = [_count([row.verdict(preset) for row in rows]) for preset in presets]
    lines = [_line(["claim", "paper", *presets]), "|---" * (2 + len(presets)) + "|"]
    lines.append(_line([f"**all {len(rows)}**", _count(said, unprinted), *counts]))
    for table, claims in groupby(rows, key=lambda row: row.table):
        experiment = _experiment(table)
        where = f" ({text.markdown(experiment.source)})" if experiment else ""
        made_on = [text.markdown(settings.get((table, preset), "")) for preset in presets]
        timed = bool(experiment and experiment.together)
        lines.append(_line([f"**{text.markdown(table)}**{where}", "", *made_on]))
        for row in claims:
            ours = [_ours(row.by_preset.get(preset), timed) for preset in presets]
            asked = f"{text.markdown(row.claim['text'])} ({_condition(row.claim)})"
            lines.append(_line([asked, _paper(row.claim), *ours]))
    return lines


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _count(verdicts: Sequence[str], without: str = "not measured") -> str:
    """Count verdicts in words, such as "3 hold, 1 does not"."""
    words = {**SHORT, "not measured": without}
    return "<br>".join(f"{verdicts.count(one)} {VERDICT_MARKS[one]} {words[one]}" for one in SHORT if one in verdicts)


def _condition(claim: Judged) -> str:
    """Say what a claim compares with its threshold, and how.

    >>> _condition({"formula": "accuracy[lcnn] − accuracy[standard] >= -1", "threshold": -1.0})
    'difference ≥ -1'
    """
    quantity = next(
        (word for sign, word in ((" / ", "ratio "), (" − ", "difference ")) if sign in claim["formula"]), ""
    )
    return f"{quantity}{'≤' if '<=' in claim['formula'] else '≥'} {claim['threshold']:.3g}"


def _paper(claim: Judged) -> str:
    if claim["paper"] is None:
        return "in words" if claim["source"] == "paper" else "–"
    return f"{VERDICT_MARKS[claim['paper_verdict']]} {number_text(claim['paper'], digits=3)}"


def _ours(judged: Judged | None, timed: bool) -> str:
    """Print verdict and number; what is timed in turns is not a matter of seeds."""
    if judged is None or judged["verdict"] == "not measured":
        return "–"
    seeds = len(judged["seeds"])
    count = "" if timed else f", {seeds} seeds" if seeds > 1 else ", one seed"
    verdict = judged["verdict"]
    return f"{VERDICT_MARKS[verdict]} {SHORT[verdict]}<br>{with_interval(judged, 3)}{count}"

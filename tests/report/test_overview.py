"""The page over all results: claims first, failed ones too; what is not measured says so; the rest unfolds."""

import re
from dataclasses import replace

import pytest

from lowcurve.experiments import EXPERIMENTS
from lowcurve.experiments.results import tabulate
from lowcurve.report.overview import overview
from lowcurve.report.summary import in_short
from lowcurve.report.write import index, write_index
from tests.report.example import example
from tests.report.test_hostile import evil


def judged(**verdicts):
    """A result whose claims have been judged as given, by formula."""
    found = {v["formula"]: v for v in tabulate(EXPERIMENTS["table-geometry"], {}, {})["verdicts"]}
    return [{**found[formula], **more} for formula, more in verdicts.items()]


HALVES = "curvature[lcnn] / curvature[standard] <= 0.5"
KEEPS = "accuracy[lcnn] − accuracy[standard] >= -1"
SIXTH = "curvature[lcnn] / curvature[standard] <= 0.166667"
HOLDS = {"ours": 0.2, "low": 0.15, "high": 0.3, "verdict": "holds", "seeds": {"0": 0.2, "1": 0.2}}
FAILS = {"ours": -9.6, "low": -11.0, "high": -8.0, "verdict": "does not hold", "seeds": {"0": -9.6}}


@pytest.fixture
def results():
    digits = example(verdicts=judged(**{HALVES: HOLDS, KEEPS: FAILS, SIXTH: HOLDS}))
    return [digits, replace(digits, preset="cpu", verdicts=judged(**{HALVES: {**HOLDS, "verdict": "cannot tell"}}))]


def row(lines, text):
    line = next(line for line in lines if line.startswith(f"| {text}"))
    return [cell.strip() for cell in line.strip("|").split(" |")]


def test_each_claim_has_a_column_per_preset(results):
    lines = overview(results)
    assert row(lines, "claim")[1:5] == ["paper", "digits", "cpu", "long"]
    assert row(lines, "LCNN at least halves curvature")[1:5] == [
        "✓ 0.257",
        "✓ holds<br>0.200 [0.150, 0.300], 2 seeds",
        "? cannot tell<br>0.200 [0.150, 0.300], 2 seeds",
        "–",
    ]


def test_the_heading_of_a_table_says_what_each_preset_made_it_on(results):
    digits, cpu = results
    other = "CIFAR-10 (10,000/5,000 subset), ResNet-18 of width 16"
    lines = overview([digits, replace(cpu, setting=other)])
    assert row(lines, "**table-geometry**")[1:5] == ["", digits.setting, other, ""]


def test_failed_claims_are_in_the_first_table_and_counted(results):
    lines = overview(results)
    first = lines[: lines.index(next(line for line in lines if line.startswith("<details>")))]
    assert row(first, "LCNN loses at most 1 %")[2] == "✗ does not<br>-9.600 [-11.000, -8.000], one seed"
    assert row(first, "**all 2**")[2] == "1 ✓ holds<br>1 ✗ does not"
    assert not [line for line in first if "a sixth" in line]  # our own target: folded


def test_what_nobody_measured_is_listed(results):
    text = "\n".join(overview(results)).partition("Measured nowhere yet")[2]
    unmeasured = {name for name, one in EXPERIMENTS.items() if one.claims and not one.apart} - {"table-geometry"}
    assert all(name in text for name in unmeasured)


def test_results_of_others_have_no_columns_for_our_presets(results):
    mine = replace(results[0], preset="mine", experiment="my-table")
    assert row(overview([mine]), "claim")[1:] == ["paper", "mine"]


def test_every_fold_is_closed_and_the_page_is_made_of_the_files(tmp_path, results):
    for result in results:
        result.save(tmp_path)
    text = write_index(tmp_path).read_text()
    assert text.count("<details>") == text.count("</details>") > 3
    assert text.count("<summary>") == text.count("</summary>") == text.count("<details>")
    assert index(tmp_path) == text
    assert re.search(r"<summary>table-geometry \(cpu\): Model geometry</summary>\n\n", text)


def test_a_title_stays_text(tmp_path):
    bad = replace(evil(), preset="mine")
    bad.save(tmp_path)
    text = re.sub(r"(`+)(?:.(?!\1(?!`)))*.\1", "", index(tmp_path))
    assert "<script" not in text and "<img" not in text
    assert set(re.findall(r"<(/?\w+)", text)) <= {"details", "/details", "summary", "/summary", "br"}


def test_in_short_has_a_table_for_each_data_set_of_the_largest_preset():
    digits, cpu = example(preset="digits"), example(preset="cpu", setting="CIFAR-10, small")
    other = example(preset="cpu", experiment="table-geometry-svhn-vgg11", setting="another experiment")
    more = example(preset="cpu", experiment="table-geometry-cifar100", setting="CIFAR-100, small")
    lines = in_short([digits, cpu, more, other])
    assert [line for line in lines if line.endswith(":")] == ["CIFAR-10, small:", "CIFAR-100, small:"]
    rows = [line.split(" | ") for line in lines if line.startswith("| LCNN |")]
    assert [row[1:5] for row in rows] == [["89.0", "10.0", "0.100", "0.257"]] * 2  # seed 0: 10 / 100
    assert in_short([example(preset="my-own")]) == []


def test_in_short_takes_seeds_of_any_name_as_text():
    named = example(preset="cpu")
    cells = named.rows[0]["cells"]
    for cell in cells.values():
        cell["values"] = {"<b>first</b> | x": cell["mean"]}
    (row,) = [line for line in in_short([named]) if line.startswith("| Standard")]
    assert "<b>" not in row and "first" in row


def test_times_are_not_counted_by_seeds():
    timed = tabulate(
        EXPERIMENTS["table-epoch-times"],
        {"standard": {0: {"epoch_seconds": 1.0}}, "lcnn": {0: {"epoch_seconds": 2.0}}},
        {},
    )
    lines = overview([example(preset="cpu", experiment="table-epoch-times", verdicts=timed["verdicts"])])
    (told,) = [line for line in lines if line.startswith("| LCNN costs")]
    assert "2.000" in told and "seed" not in told

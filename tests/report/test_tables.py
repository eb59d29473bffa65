"""Tables say what the result says, in each form."""

import csv
import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from lowcurve.report.plots import draw_curves
from lowcurve.report.tables import csv_text, latex_table, markdown_table, number_text
from lowcurve.report.terminal import print_result
from lowcurve.report.write import MARKER, write_index, write_result
from tests.report.example import CURVE, OUTLINES, example


def test_numbers_keep_what_matters():
    assert number_text(0.0, None) == "0.00"
    assert number_text(-0.12345, None, 3) == "-0.123"
    assert number_text(1143.62, 99.38) == "1144 ± 99.38"
    assert number_text(1e-5, None, 2) == "1e-05"


def test_markdown_has_ours_the_papers_and_the_command():
    text = markdown_table(example())
    table = [line for line in text.splitlines() if line.startswith("| Standard")]
    assert len(table) == 2  # ours and the paper's
    assert "110.00 ± 14.14" in table[0]
    assert table[0].rstrip(" |").endswith("2")  # two runs
    assert "270.89 ± 75.04" in table[1]
    assert "CURE" in text.split("The paper's numbers")[1]
    assert "CURE" not in text.split("The paper's numbers")[0]  # nothing was measured of it
    assert "lowcurve reproduce table-geometry --preset digits" in text
    assert "✓ holds" in text
    widths = {line.count("|") for line in text.splitlines() if line.startswith("| ") and "E C_f" in line}
    assert len(widths) == 2  # with and without the column that counts runs


def test_latex_is_balanced_and_escaped():
    text = latex_table(example())
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 1
    assert r"110.00 $\pm$ 14.14" in text
    columns = re.search(r"\\begin\{tabular\}\{(l+r+)\}", text).group(1)
    for line in text.splitlines():
        if line.endswith(r"\\") and "multicolumn" not in line:
            assert line.count("&") == len(columns) - 1
    assert not re.search(r"(?<!\\)%", text)
    assert not set("βγ∇‖₂±–") & set(text)


def test_csv_has_every_seed_with_its_run():
    rows = list(csv.DictReader(io.StringIO(csv_text(example()))))
    found = [row for row in rows if row["row"] == "standard" and row["column"] == "curvature"]
    assert [(row["seed"], float(row["value"])) for row in found] == [("0", 100.0), ("1", 120.0)]
    assert found[1]["run"] == "digits-resnet18-standard-s1-11111111"
    assert found[0]["paper_mean"] == "270.89"
    missing = [row for row in rows if row["row"] == "cure" and row["column"] == "curvature"]
    assert [(row["seed"], row["value"], row["paper_mean"]) for row in missing] == [("", "", "116.31")]


def test_the_index_keeps_what_was_written_by_hand(tmp_path):
    result = example(curves=[CURVE], extra={"outlines": OUTLINES})
    result.save(tmp_path)
    (tmp_path / "README.md").write_text(f"# By hand\n\nReproduced.\n\n{MARKER}\n\nold tables\n")
    written = write_result(result, tmp_path / "digits")
    text = write_index(tmp_path).read_text()
    assert text.startswith("# By hand\n\nReproduced.\n")
    assert "old tables" not in text
    assert "110.00 ± 14.14" in text
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert "digits/table-geometry-boundaries.png" in links
    assert all((tmp_path / link).is_file() for link in links)
    assert write_index(tmp_path).read_text() == text
    assert all(path.stat().st_size > 0 for path in written)


def test_figures_are_the_same_file_twice(tmp_path):
    result = example(curves=[CURVE])
    first = {path.name: path.read_bytes() for path in draw_curves(result, tmp_path / "a")}
    assert first == {path.name: path.read_bytes() for path in draw_curves(result, tmp_path / "b")}
    assert set(first) == {"table-geometry.png", "table-geometry.svg"}


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_terminal_shows_whole_numbers_whatever_its_width(width):
    console = Console(width=width, record=True, file=io.StringIO())
    result = example()
    print_result(console, result)
    text = console.export_text()
    assert all(row["key"] in text for row in result.rows)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    assert "110.00 ± 14.14" in text
    assert "0.100 [0." in " ".join(text.split())  # a claim's interval
    assert all(word in text for column in result.columns for word in column["label"].split())  # none is dropped
    assert width < 200 or text.count("method") == 1  # one part where there is room


def test_a_claim_without_a_number_of_the_paper_names_none():
    console = Console(width=200, record=True, file=io.StringIO())
    result = example()
    print_result(console, replace(result, verdicts=[{**verdict, "paper": None} for verdict in result.verdicts]))
    assert result.verdicts and not [line for line in console.export_text().splitlines() if "paper –" in line]

"""Results from elsewhere: names lead nowhere, malformed files are named, and no text means more than itself."""

import copy
import io
import json
import os
import re
from dataclasses import asdict, replace
from itertools import islice, product

import pytest
from rich.console import Console
from typer.testing import CliRunner

from lowcurve.cli import app
from lowcurve.errors import UserError
from lowcurve.experiments.results import load_results, load_runs
from lowcurve.report.page import render
from lowcurve.report.plots import draw_curves
from lowcurve.report.tables import csv_text, latex_table, markdown_table
from lowcurve.report.terminal import print_result
from lowcurve.report.write import write_result
from tests.report.example import CURVE, IMAGES, OLD, OUTLINES, example, records

PATHS = ["../../../x", "/tmp/x", "..", ".", "", "a/b", "a\\b", "a\0b", "~", "-rf", "x\n", "é", "a b", "x" * 300]
EVIL = (
    '</script><script>document.title="owned"</script><img src=x onerror="document.title=\'owned\'">'
    "'\"|`a`[l](http://e)\\input{/etc/passwd} $x$ $\\undefined{}$ {% raw %} {{ 7*7 }} [red]q[/]w[/] :smile: "
    "\x1b[31m\x07_e_ *b* # % & ~ ^\n# heading\n\n| cell |\u202eright"
)


def whole() -> dict:
    return asdict(example(curves=[CURVE], extra={"outlines": OUTLINES, "images": IMAGES}))


def put(folder, content, name="digits/table-geometry.json"):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


def test_reading_changes_nothing(tmp_path):
    path = put(tmp_path, whole())
    (result,) = load_results(tmp_path).values()
    assert repr(asdict(result)) == repr(json.loads(path.read_text()))  # whole numbers stay whole
    assert len(draw_curves(result, tmp_path)) == 3
    assert 'class="p0"' in render([result], {})


def test_pictures_of_earlier_versions_are_read(tmp_path):
    put(tmp_path, {**whole(), "extra": OLD})
    (result,) = load_results(tmp_path).values()
    assert result.extra["outlines"] == OUTLINES
    assert result.extra["images"] == {key: IMAGES[key] for key in ("labels", "rows")}
    assert 'type="range"' in render([result], {})


def report(folder):
    """Run the command; return its error."""
    return CliRunner().invoke(app, ["report", str(folder / "in"), "--output", str(folder / "out.html")]).exception


PLACES = [("experiment",), ("preset",), ("rows", 0, "key"), ("rows", 0, "runs", 0)]


@pytest.mark.parametrize(("place", "name"), [*product(PLACES, PATHS), (("experiment",), "README")])
def test_names_are_names(tmp_path, name, place):
    content = whole()
    target = content
    for step in place[:-1]:
        target = target[step]
    target[place[-1]] = name
    path = put(tmp_path / "in", content)
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    error = report(tmp_path)
    assert isinstance(error, UserError)
    assert str(path) in str(error)
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before


def changes(content):
    """Yield every result that differs from a sound one in one value: gone, of another type, huge, not a number."""
    places = []

    def walk(node, place):
        items = node.items() if isinstance(node, dict) else list(enumerate(node))[:1]
        for key, value in items:
            places.append((*place, key))
            if isinstance(value, (dict, list)):
                walk(value, (*place, key))

    walk(content, ())
    for place in places:
        for wrong in ("gone", [], {}, "text", None, 1e200, -3, True, [[[]]], [None], {"a": None}):
            broken = copy.deepcopy(content)
            target = broken
            for step in place[:-1]:
                target = target[step]
            if wrong == "gone":
                del target[place[-1]]
            else:
                target[place[-1]] = wrong
            yield place, broken


def test_any_single_change_is_shown_or_refused_by_name(tmp_path):
    """Some 300 results: no form of the report fails in any other way than by a `UserError` with the file's name."""
    small = whole()
    small["rows"], small["verdicts"], small["columns"] = small["rows"][:1], small["verdicts"][:1], small["columns"][:2]
    refused = 0
    for _, broken in islice(changes(small), 0, None, 7):
        path = put(tmp_path, broken)
        try:
            (result,) = load_results(tmp_path).values()
        except UserError as error:
            assert str(path) in str(error) or "found none" in str(error)
            refused += 1
            continue
        for form in (markdown_table, latex_table, csv_text, lambda one: render([one], {})):
            form(result)
        print_result(Console(file=io.StringIO()), result)
    assert refused > 100


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"\xff\xfe{}", b'{"experiment": NaN}', b'{"experiment": 1e999}', b"[" * 100_000,
        b'{"a":' * 100_000, b'{"experiment": "x"}', b'{"experiment": "\\ud800"}', b"1" * 5000,
        b'{"columns": [], "rows": []}', b'{"experiment": "x", "verdicts": 3, "unknown": {}}',
    ],
)  # fmt: skip
def test_what_is_no_result_is_refused_by_name(tmp_path, content):
    path = put(tmp_path / "in", content)
    error = report(tmp_path)
    assert isinstance(error, UserError)
    assert str(path) in str(error)


def test_what_is_no_file_is_refused_by_name(tmp_path):
    put(tmp_path, whole())
    pipe = tmp_path / "digits" / "pipe.json"
    os.mkfifo(pipe)
    with pytest.raises(UserError, match=r"pipe\.json"):
        load_results(tmp_path)


def test_records_are_checked_as_well(tmp_path):
    (name, record), *_ = records().items()
    path = put(tmp_path, record, f"digits/runs/{name}.json")
    assert load_runs(tmp_path) == {name: record}
    for place, broken in islice(changes(record), 0, None, 3):
        put(tmp_path, broken, f"digits/runs/{name}.json")
        try:
            render([example()], load_runs(tmp_path))
        except UserError as error:
            assert str(path) in str(error), place


def test_figures_do_not_follow_links(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    folder = tmp_path / "results"
    folder.mkdir()
    for ending in ("md", "tex", "csv", "png", "svg"):
        (folder / f"table-geometry.{ending}").symlink_to(victim)
    (folder / "table-geometry-boundaries.png").symlink_to(victim)
    write_result(example(curves=[CURVE], extra={"outlines": OUTLINES}), folder)
    assert victim.read_text() == "precious"


def evil():
    content = whole()
    for key in ("title", "source", "setting", "command", "created"):
        content[key] = EVIL
    content["notes"], content["environment"] = [EVIL], {EVIL: EVIL, "torch": EVIL}
    outlines, images = (content["extra"][kind] for kind in ("outlines", "images"))
    for part in (*content["rows"], *content["columns"], *outlines["nets"], *images["rows"]):
        part["label"] = EVIL
    for verdict in content["verdicts"]:
        verdict["text"] = verdict["formula"] = EVIL
    for curve in content["curves"]:
        curve["x_label"] = curve["y_label"] = curve["lines"][0]["label"] = EVIL
    images["labels"], images["caption"], images["rows"][0]["note"] = [EVIL], EVIL, EVIL
    outlines["caption"] = outlines["slider"] = EVIL
    return replace(example(), **content)


def test_markdown_stays_text():
    lines = markdown_table(evil()).splitlines()
    outside_code = re.sub(r"(`+)(?:.(?!\1(?!`)))*.\1", "", "\n".join(lines))
    assert "<script" not in outside_code
    assert "<img" not in outside_code
    assert "[l](" not in outside_code.replace("\\[", "").replace("\\]", "")
    assert [line for line in lines if line.startswith("#")] == lines[:1]
    widths = [len(re.findall(r"(?<!\\)\|", line)) for line in lines if line.startswith("|")]
    assert set(widths) == {9, 10, 6}  # ours with a column of runs, the paper's, and claims


def test_latex_stays_text():
    text = latex_table(evil())
    assert "\\input{/etc" not in text
    assert "\\textbackslash{}input\\{/etc/passwd\\}" in text
    rows = [line for line in text.splitlines() if line.endswith(r"\\") and "multicolumn" not in line]
    assert {len(re.findall(r"(?<!\\)&", line)) for line in rows} == {7}
    bare = re.sub(r"\\[{}$&%_#]", "", text)
    assert bare.count("{") == bare.count("}")
    assert bare.count("$") % 2 == 0


def test_the_terminal_shows_text_as_it_is():
    console = Console(file=io.StringIO(), width=5000, force_terminal=False)
    print_result(console, evil())
    shown = console.file.getvalue()
    assert "\x1b" not in shown and "\x07" not in shown and "\u202e" not in shown
    assert "[red]q[/]w[/] :smile:" in shown


def test_figures_show_text_as_it_is(tmp_path):
    assert len(draw_curves(evil(), tmp_path)) == 3


def test_the_page_has_no_element_that_a_text_made():
    page = render([evil()], records())
    assert page.count("<script") == 1
    assert "<img src=x" not in page
    assert "49" not in re.findall(r"{{ 7\*7 }}|(?<=raw %} )\d+", page)
    assert "unsafe" not in page.partition("<style>")[0]

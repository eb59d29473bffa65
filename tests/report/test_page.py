"""The page is whole, safe and self-contained."""

import re
import struct
import zlib
from base64 import b64decode
from html.parser import HTMLParser

import pytest

from lowcurve.experiments import EXPERIMENTS
from lowcurve.experiments.results import load_results
from lowcurve.report.page import best, picture, render, write_page
from lowcurve.report.svg import Axis, line_chart
from tests.report.example import CURVE, IMAGES, LINE, OUTLINES, example, records

VOID = {"meta", "link", "input", "img", "br", "hr", "col"}


class Reader(HTMLParser):
    """Checks nesting; gathers ids, references and text."""

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.links, self.addresses, self.tags = [], [], [], [], []

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.tags.append(tag)
        self.ids += [values["id"]] if "id" in values else []
        self.links += [values["href"]] if tag == "a" else []
        self.addresses += [values[key] for key in ("src", "href", "action", "data") if key in values and tag != "a"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def page():
    return render([example(curves=[CURVE], extra={"outlines": OUTLINES, "images": IMAGES})], records())


@pytest.fixture(scope="module")
def read(page):
    reader = Reader()
    reader.feed(page)
    return reader


def test_every_element_is_closed_and_every_id_is_unique(read):
    assert read.open == []
    assert len(read.ids) == len(set(read.ids))


def test_links_lead_somewhere_on_the_page(read):
    assert read.links
    assert all(link[0] == "#" and link[1:] in read.ids for link in read.links)


def test_nothing_comes_from_elsewhere(page, read):
    assert all(address.startswith("data:") for address in read.addresses)
    assert not re.search(r"(?:url\(|@import|fetch\(|https?://)", page)
    assert "default-src 'none'" in page


def test_text_of_results_is_escaped(page):
    assert '<script>alert("no")' not in page
    assert "&lt;angle brackets&gt; &amp; more" in page
    assert page.count("<script>") == 1


def test_the_page_shows_numbers_verdicts_commands_and_versions(page):
    for text in (
        "110.00 ± 14.14",
        "270.89 ± 75.04",
        "LCNN loses at most 1 % accuracy",
        "lowcurve reproduce table-geometry --preset digits",
        "lowcurve train results/digits/recipes/digits-resnet18-lcnn-s0-22222222.toml",
        "epochs = 10",
        "torch 2",
        "Partial",
        "β after training",
    ):
        assert text in page


def test_write_page_reads_a_folder(tmp_path):
    example().save(tmp_path)
    page = write_page([tmp_path], tmp_path / "out" / "report.html")
    assert "Model geometry" in page.read_text()


def test_best_follows_the_columns_direction():
    result = example()
    columns = {column["key"]: column for column in result.columns}
    assert best(result, columns["curvature"]) == 10.0
    assert best(result, columns["accuracy"]) == pytest.approx(91.0)
    assert best(result, columns["curvature_median"]) is None


def test_a_picture_is_a_png_with_the_right_pixels():
    data = b64decode(picture([[0.0, 1.0], [0.5, 0.25]]).partition(",")[2])
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", data[16:24]) == (2, 2)
    start = data.index(b"IDAT") + 4
    length = struct.unpack(">I", data[start - 8 : start - 4])[0]
    rows = zlib.decompress(data[start : start + length])
    assert len(rows) == 6  # two rows of a filter byte and two gray pixels


def test_signed_pictures_are_white_at_zero_red_above_blue_below():
    from io import BytesIO

    from PIL import Image

    data = b64decode(picture([[0.0, 1.0, -1.0]], signed=True).partition(",")[2])
    pixels = list(Image.open(BytesIO(data)).convert("RGB").getdata())
    assert pixels[0] == (255, 255, 255)
    assert pixels[1][0] > pixels[1][2]
    assert pixels[2][2] > pixels[2][0]


def test_log_axes_are_even_in_decades():
    axis = Axis([0.001, 0.1], 0, 100, log=True)
    assert axis(0.01) == pytest.approx(50)
    assert axis.ticks() == pytest.approx([0.001, 0.01, 0.1])
    assert axis(0.0) == pytest.approx(0)  # what has no logarithm sits on the edge


def test_a_chart_places_its_points():
    chart = line_chart(CURVE, "name")
    xs = [float(x) for x in re.findall(r'circle cx="([\d.]+)"', chart)]
    assert xs[1] - xs[0] == pytest.approx(xs[2] - xs[1], abs=0.2)
    assert 'data-tip="LCNN, 0.001: 0.01 (0.005 to 0.02)"' in chart
    assert "predicted" in chart


def test_a_linear_axis_fits_its_data():
    """Four curves between 95 and 99 use the height; zero is shown where it is near."""
    axis = Axis([95.0, 99.0], 0, 100, log=False)
    assert axis(99.0) - axis(95.0) > 85
    assert Axis([1.0, 9.0], 0, 100, log=False).low == 0.0
    for values in ([0.0], [5.0, 5.0], [-3.0, -3.0], [1e-12, 1e-12], [1e100, -1e100], [1e15, 1e15 + 1]):
        flat = Axis(values, 0, 100, log=False)
        assert flat.low < flat.high
        assert len(flat.ticks()) < 20


def test_lines_that_coincide_are_told_apart():
    line = CURVE["lines"][0]
    chart = line_chart({**CURVE, "lines": [line, line, line]}, "name")
    assert [f"c{position} d{position}" in chart for position in range(3)] == [True] * 3
    assert len(set(re.findall(r' r="([\d.]+)"', chart))) == 3  # rings around each other


def test_what_was_not_measured_is_folded_away(page):
    before, folded = page.split("</style>")[1].split("not measured</summary>")
    unmeasured = '<span class="mark" aria-hidden="true">–</span>'
    assert unmeasured not in before
    assert unmeasured in folded
    assert 'class="open"' in before  # what the numbers cannot tell is not folded away


def test_the_switch_is_there_only_where_the_paper_has_numbers(page):
    assert 'id="show-paper"' in page
    rows = [{**row, "paper": {}} for row in example().rows]
    assert 'id="show-paper"' not in render([example(rows=rows, verdicts=[])], {})


def test_the_first_sentence_counts_claims():
    good = [verdict for verdict in example().verdicts if verdict["verdict"] == "holds"]
    page = render([example(verdicts=good)], {})
    assert 'class="fails"' not in page and f"{len(good)} hold</strong> and none fails." in squeezed(page)
    failed = [*good, {**good[0], "verdict": "does not hold"}]
    assert 'and <strong class="fails">1 do not</strong>.' in squeezed(render([example(verdicts=failed)], {}))


def test_a_row_has_one_color_on_all_charts():
    first, second = (
        {**LINE, "row": row, "label": row, "low": LINE["y"], "high": LINE["y"]} for row in ("standard", "lcnn")
    )
    both, alone = ({**CURVE, "lines": lines} for lines in ([first, second], [second]))
    page = render([example(curves=[both, alone])], {})
    assert re.findall(r"series (c\d)", page) == ["c0", "c1", "c1"]
    assert re.findall(r'<li class="(c\d)', page) == ["c0", "c1", "c1"]


def test_nothing_is_best_of_one():
    result = example()
    column = next(column for column in result.columns if column["key"] == "curvature")
    assert best(example(rows=result.rows[:1]), column) is None


def test_what_no_hessian_sees_is_not_best():
    result = example()
    curvature = next(column for column in result.columns if column["key"] == "curvature")
    seen = best(result, curvature)
    flat = {**result.rows[0]["cells"]["curvature"], "mean": 0.0}
    relu = {**result.rows[0], "key": "relu", "cells": {"curvature": flat}}
    assert seen is not None and best(example(rows=[*result.rows, relu]), curvature) == seen


def squeezed(page):
    return " ".join(page.split())


def test_table_one_comes_first(tmp_path):
    assert next(iter(EXPERIMENTS)) == "table-geometry"
    for name in ("a-table-of-yours", "table-ablations", "table-geometry-cifar100", "table-attacks", "table-geometry"):
        example(experiment=name).save(tmp_path)
    found = [result.experiment for result in load_results(tmp_path).values()]
    assert found[:2] == ["table-geometry", "table-geometry-cifar100"] and found[-1] == "a-table-of-yours"


def test_the_largest_preset_comes_first(tmp_path):
    for preset in ("cpu", "a-preset-of-yours", "digits", "paper", "long"):
        example(preset=preset).save(tmp_path)
    found = [result.preset for result in load_results(tmp_path).values()]
    assert found == ["paper", "long", "cpu", "digits", "a-preset-of-yours"]


def test_rings_stay_inside_the_frame():
    """A ring on the frame would cover the label of a tick."""
    line = {"row": "a", "label": "a", "x": [0.0, 0.5, 1.0], "y": [0.0, 50.0, 100.0]}
    lines = [{**line, "low": line["y"], "high": line["y"]} for _ in range(4)]
    chart = line_chart({"lines": lines, "log": False, "x_label": "x", "y_label": "y"}, "name")
    frame = re.search(r'<rect class="plot" x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)"', chart)
    left, top, width, height = map(float, frame.groups())
    circles = [tuple(map(float, found)) for found in re.findall(r'cx="([\d.]+)" cy="([\d.]+)" r="([\d.]+)"', chart)]
    assert len(circles) == 12
    for x, y, radius in circles:
        assert left <= x - radius and x + radius <= left + width
        assert top <= y - radius and y + radius <= top + height

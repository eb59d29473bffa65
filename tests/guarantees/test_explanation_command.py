"""`lowcurve certify --explanations`: the table, the files, the report, and both sides of each number."""

import csv
import json

import pytest
import torch
from typer.testing import CliRunner

import lowcurve as lc
from lowcurve.attacks.manipulation import Manipulation
from lowcurve.cli import app
from lowcurve.guarantees.explanation_curve import Sides, both_sides
from lowcurve.report.own import own_results
from lowcurve.training.config import parse_config
from lowcurve.training.loop import train
from lowcurve.types import ExplanationBound

FILES = {"explanations.csv", "explanations.json", "explanations.png", "explanations.svg"}


def make(output, method):
    tree = {
        "name": method,
        "output": output,
        "data": {"name": "digits", "limit_train": 16},
        "model": {"name": "mlp", "width": 4},
        "method": {"name": method},
        "train": {"epochs": 1, "batch_size": 16},
    }
    return train(parse_config(tree)).folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folders = [make(tmp_path_factory.mktemp("runs"), method) for method in ("lcnn", "relu")]
    for folder in folders:
        arguments = ["--samples", "6", "--explanations", "--radii", "0.1,0.01", "--restarts", "1", "--no-layers"]
        shown = CliRunner().invoke(app, ["certify", str(folder), *arguments])
        assert shown.exit_code == 0, (shown.output, shown.exception)
        assert "cosine at least" in shown.output
        assert ("vacuous: for most samples the gradient" in " ".join(shown.output.split())) == ("relu" in str(folder))
    return folders


def test_files_agree_with_the_library(runs):
    folder = runs[0] / "certify"
    assert {path.name for path in folder.iterdir()} >= FILES
    rows = list(csv.DictReader((folder / "explanations.csv").open()))
    assert len(rows) == 12 and {row["radius"] for row in rows} == {"0.01", "0.1"}
    for row in rows:
        assert 0 < float(row["attacked_change"]) <= float(row["change"])
        assert float(row["cosine"]) <= float(row["attacked_cosine"])
    summary = json.loads((folder / "explanations.json").read_text())
    assert summary["crossings"] == 0 and summary["radii"] == [0.01, 0.1] and summary["samples"] == 6

    from lowcurve.data import load_dataset

    x, y = load_dataset("digits").test.subset(6, 0).batch(slice(None))
    expected = lc.explanation_bound(lc.load(runs[0]), x, y, 0.1)
    assert summary["certified"]["relative"][1] == pytest.approx(float(expected.relative.median()), rel=1e-6)


def test_a_net_with_kinks_has_no_bound_in_the_files(runs):
    summary = json.loads((runs[1] / "certify" / "explanations.json").read_text())
    assert summary["certified"]["relative"] == [None, None] and summary["certified"]["cosine"] == [-1, -1]


def test_the_report_shows_both_sides(runs):
    results, _ = own_results(runs)
    result = next(result for result in results if result.experiment == "certified-explanations")
    summary = json.loads((runs[0] / "certify" / "explanations.json").read_text())
    (line,) = result.curves[0]["lines"]  # the net with kinks has none
    assert line["y"] == summary["attacked"]["relative"] and line["predicted"] == summary["certified"]["relative"]
    assert all(found <= proven for found, proven in zip(line["y"], line["predicted"], strict=True))


def test_radii_share_their_grammar():
    shown = CliRunner().invoke(app, ["certify", "nothing:here", "--explanations", "--radii", "0.1,x"])
    assert shown.exit_code != 0 and "expected --radii as numbers above 0" in str(shown.exception)


def test_what_is_found_counts_at_larger_radii_and_crossings_are_counted():
    def numbers(*values):
        return torch.tensor(values).double()

    found = {0.1: Manipulation(numbers(2.0), numbers(2.0), numbers(0.5)), 0.2: Manipulation(*[numbers(1.0)] * 3)}
    bound = ExplanationBound(numbers(1.5), numbers(3.0), numbers(0.0), "test", {})
    sides = both_sides((0.2, 0.1), lambda radius: bound, found.__getitem__)
    assert isinstance(sides, Sides) and sides.radii == (0.1, 0.2)
    assert float(sides.found[1].change) == 2.0 and float(sides.found[1].cosine) == 0.5
    assert sides.crossings == 2

"""Your own runs on a page: what was trained, measured, attacked, certified and explained, with the files' numbers."""

import json
import re
import shutil

import pytest
from typer.testing import CliRunner

from lowcurve.cli import app
from lowcurve.errors import UserError
from lowcurve.report.own import own_results, sort_out
from lowcurve.training.config import parse_config
from lowcurve.training.loop import train
from tests.report.example import example
from tests.report.test_page import Reader

NAME = "smooth <b>[red] $x^$ [bold"  # markup of four kinds
KINDS = ["training", "geometry", "attacks", "certificates", "sweep", "explanations"]


def invoke(*arguments):
    shown = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert shown.exit_code == 0, (shown.output, shown.exception)
    return " ".join(shown.output.split())


def make(output, method, name):
    tree = {
        "name": name,
        "output": output,
        "data": {"name": "digits", "limit_train": 64, "limit_test": 32},
        "model": {"name": "mlp", "width": 8},
        "method": {"name": method},
        "train": {"epochs": 3, "batch_size": 16, "evaluate_every": 2},
    }
    return train(parse_config(tree)).folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    output = tmp_path_factory.mktemp("own")
    first, second = make(output, "lcnn", NAME), make(output, "relu", "plain")
    assert f"{NAME} on Digits" in invoke("measure", first, "--samples", 8, "--stability", 4)
    attack = ["--samples", 8, "--attacks", "pgd", "--steps", "pgd=2", "--radii", "0.1,0.2", "--saliency", 4]
    assert f"{NAME} on Digits" in invoke("attack", first, *attack)
    assert f"{NAME} on 8 test samples" in invoke("certify", first, "--samples", 8)
    invoke("tune", first, "--samples", 6, "--betas", "2,10", "--steps", "pgd=2,apgd-t=2,square=5")
    assert "# smooth &lt;b&gt;" in (first / "card.md").read_text()
    return first, second


def values(result, row, key):
    return next(iter(result.rows[row]["cells"][key]["values"].values()))


def test_every_kind_shows_the_numbers_of_its_file(runs):
    results, records = own_results(runs)
    assert [result.experiment for result in results] == KINDS
    by_name = {result.experiment: result for result in results}
    training = by_name["training"]
    metrics = [json.loads(line) for line in (runs[0] / "metrics.jsonl").read_text().splitlines()]
    assert values(training, 0, "test_accuracy") == pytest.approx(100 * metrics[-1]["test_accuracy"])
    curves = {curve["y_label"]: {line["row"]: line for line in curve["lines"]} for curve in training.curves}
    key = training.rows[0]["key"]
    assert curves["loss"][key]["y"] == [row["loss"] for row in metrics]
    assert curves["test accuracy (%)"][key]["x"] == [1.0, 2.0]  # evaluated in the second epoch and the last
    beta = [sum(row["beta"].values()) / len(row["beta"]) for row in metrics]
    assert curves["mean β"][key]["y"] == pytest.approx(beta)
    assert set(curves["mean β"]) == {key}  # the other run has none
    sigma = [sum(row["sigma"].values()) / len(row["sigma"]) for row in metrics]
    assert curves["mean σ"][key]["y"] == pytest.approx(sigma)
    measured = json.loads((runs[0] / "measure/summary.json").read_text())
    assert values(by_name["geometry"], 0, "curvature") == measured["geometry"]["test"]["curvature"]["mean"]
    assert by_name["geometry"].curves[0]["lines"][0]["y"] == measured["stability"]["random"]["mean"]
    attacked = json.loads((runs[0] / "attack/summary.json").read_text())["table"]
    strong = next(cell for cell in attacked if cell["attack"] == "pgd" and cell["eps"] == 0.2)
    assert values(by_name["attacks"], 0, "pgd=0.2") == pytest.approx(100 * strong["accuracy"])
    assert by_name["attacks"].curves[0]["lines"][0]["x"] == [0.0, 0.1, 0.2]
    certified = json.loads((runs[0] / "certify/summary.json").read_text())
    line = by_name["certificates"].curves[0]["lines"][0]
    assert line["y"][1:] == [pytest.approx(100 * share) for share in certified["certified_accuracy"].values()]
    assert set(records[key]["sigma"]) == {layer["name"] for layer in certified["layers"]}
    explained = json.loads((runs[0] / "attack/explanations.json").read_text())
    assert values(by_name["explanations"], 0, "similarity") == explained["similarity"]


def test_the_hessian_of_a_network_with_kinks_is_no_smoothness(runs, tmp_path):
    """Zero almost everywhere: it would stand in bold as the best curvature of all."""
    plain = shutil.copytree(runs[1], tmp_path / "plain")
    invoke("measure", plain, "--samples", 4, "--stability", 2)
    (geometry,) = (result for result in own_results([runs[0], plain])[0] if result.experiment == "geometry")
    cells = geometry.rows[1]["cells"]
    assert "gradient_norm" in cells and not {key for key in cells if "curvature" in key or "hessian" in key}
    assert "--stand-in 1000" in geometry.notes[0] and "ReLU" in geometry.notes[0]
    invoke("measure", plain, "--samples", 4, "--stability", 2, "--stand-in", 1000)
    (geometry,) = (result for result in own_results([plain])[0] if result.experiment == "geometry")
    assert values(geometry, 0, "margin_curvature") > 0 and not geometry.notes


def test_runs_and_results_share_a_page(runs, tmp_path):
    example().save(tmp_path / "results")
    example().save(tmp_path / "more")
    invoke("report", *runs, tmp_path / "results", tmp_path / "more", "--output", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    reader = Reader()
    reader.feed(page)
    assert reader.open == []
    assert len(reader.ids) == len(set(reader.ids))
    assert all(link[1:] in reader.ids for link in reader.links)
    assert {f"own-{kind}" for kind in KINDS} | {"digits-table-geometry"} < set(reader.ids)
    assert "<b>[red]" not in page
    invoke("report", runs[0].parent, "--output", tmp_path / "own.html")  # a folder of runs
    own = (tmp_path / "own.html").read_text()
    invoke("report", runs[0].parent, "--output", tmp_path / "new")  # as of every other verb, a folder
    invoke("report", runs[0].parent, "--output", tmp_path)
    for page in (tmp_path / "new" / "report.html", tmp_path / "report.html"):
        assert page.read_text()[:100] == own[:100] and len(page.read_text()) == len(own)
    assert "show-paper" not in re.sub(r"<(script|style)>.*?</\1>", "", own, flags=re.DOTALL)
    assert "claims" not in re.sub(r"<(script|style)>.*?</\1>", "", own, flags=re.DOTALL)


def test_a_run_that_goes_on_shows_what_is_there(runs, tmp_path):
    folder = shutil.copytree(runs[1], tmp_path / "run")
    (folder / "summary.json").unlink()
    (result,), _ = own_results([folder])
    assert result.rows[0]["cells"]["loss"]


def test_a_sweep_shows_the_network_as_it_is_and_at_each_beta(runs):
    (sweep,) = [result for result in own_results(runs[:1])[0] if result.experiment == "sweep"]
    points = json.loads((runs[0] / "tune/summary.json").read_text())["points"]
    assert values(sweep, 0, "accuracy_before") == pytest.approx(100 * points[0]["accuracy"])
    best = max(points[1:], key=lambda point: point["robust"]["worst"])
    assert values(sweep, 0, "worst_best") == pytest.approx(100 * best["robust"]["worst"])
    curves = {curve["y_label"]: curve["lines"][0] for curve in sweep.curves}
    by_beta = {point["beta"]: point for point in points[1:]}
    assert curves["median C_margin"]["x"] == [2.0, 10.0]
    assert curves["median C_margin"]["y"] == [by_beta[beta]["margin_curvature"] for beta in (2.0, 10.0)]
    assert curves["accuracy under square (%)"]["y"] == pytest.approx(
        [100 * by_beta[beta]["robust"]["square"] for beta in (2.0, 10.0)]
    )


@pytest.mark.parametrize(
    "name", ["measure/summary.json", "attack/summary.json", "certify/summary.json", "tune/summary.json"]
)
@pytest.mark.parametrize("content", ["{", "[]", '{"geometry": 1}', '{"norm": "2", "flags": [], "table": [{}]}'])
def test_a_damaged_file_of_a_run_is_named(runs, tmp_path, name, content):
    folder = shutil.copytree(runs[0], tmp_path / "run")
    (folder / name).write_text(content)
    with pytest.raises(UserError, match=name):
        own_results([folder])


def test_what_is_neither_is_refused(tmp_path):
    with pytest.raises(UserError, match="found none under"):
        sort_out([tmp_path])


def test_a_network_trained_on_is_named_by_where_it_came_from(runs, tmp_path):
    """Not by the width that its recipe does not use, and without folders of this machine."""
    invoke("train", "--from", runs[1], "--output", tmp_path, "--set", "name=tuned", "--set", "data.limit_train=32")
    results, records = own_results([runs[1], tmp_path / "tuned"])
    setting = records["tuned"]["setting"]
    assert re.fullmatch(r"Digits.* subset\), trained on from plain, 1 epoch", setting), setting
    assert setting in results[0].setting and "MLP of width 8, 3 epochs" in results[0].setting

"""An experiment runs from nothing to a table, once; what is missing is done, what is there is used."""

import json
import shutil
from contextlib import nullcontext
from dataclasses import replace
from unittest.mock import ANY

import pytest
import torch
from typer.testing import CliRunner

from lowcurve.cli import app
from lowcurve.digest import sample_digests
from lowcurve.errors import UserError
from lowcurve.evaluation.measurement import Budget
from lowcurve.experiments import EXPERIMENTS
from lowcurve.experiments.collect import collect, known
from lowcurve.experiments.executor import _here, open_pool
from lowcurve.experiments.experiment import rows
from lowcurve.experiments.presets import Preset
from lowcurve.experiments.records import update_record
from lowcurve.experiments.reproduce import _pending, reproduce_all
from lowcurve.experiments.request import Request, request
from lowcurve.experiments.results import load_results, load_runs
from lowcurve.experiments.weights import keep_weights, read_manifest, reuse_weights
from lowcurve.report.write import write_result
from lowcurve.training.config import read_config
from lowcurve.training.loop import train
from lowcurve.training.runs import Run, load
from lowcurve.training.toml import parse_pairs

TINY = Preset(
    name="tiny",
    about="for tests",
    swaps={},
    training={
        "model.width": 8,
        "data.limit_train": 64,
        "data.limit_test": 32,
        "train.epochs": 2,
        "train.batch_size": 16,
    },
    seeds=(0,),
    samples=Budget(geometry=8, stability=4, pgd=8, pgd_steps=2, strong=4, apgd_steps=2, square_queries=3),
    chosen="Nothing was chosen.",
)
TABLE = replace(EXPERIMENTS["table-geometry"], data="digits", model="mlp", rows=rows("standard", "lcnn"))


@pytest.fixture
def asked(tmp_path):
    return Request(TABLE, TINY, tmp_path / "runs", tmp_path / "results", executor="here")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    list(reproduce_all([Request(TABLE, TINY, folder / "runs", folder / "results", executor="here")], print, {}))
    return folder


@pytest.fixture
def done(made, asked):
    """The same table with all its runs."""
    shutil.copytree(made, asked.output.parent, dirs_exist_ok=True)
    return asked


def state(folder):
    return {
        path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file() and "recipes" not in path.parts
    }


def test_a_table_from_nothing_and_nothing_twice(asked):
    """One row in this process, the other by a worker."""
    lines = []
    assert not next(reproduce_all([replace(asked, rows=("standard",))], lines.append, {})).complete
    asked = replace(asked, executor="local", jobs=2)
    partial = collect(asked)
    assert not partial.complete
    assert [bool(row["cells"]) for row in partial.rows] == [True, False]

    failures = {}
    (result,) = reproduce_all([asked], lines.append, failures)
    assert failures == {}
    assert result.complete
    assert result.notes == [*TABLE.notes, TINY.chosen]
    assert [line.split()[0] for line in lines] == ["table-geometry:", "done", "table-geometry:", "done"]
    assert lines[2] == "table-geometry: 1 of 2 runs to train" and "trained in" in lines[3]
    assert load_results(asked.results) == {asked.results / "tiny" / "table-geometry.json": result}

    before = state(asked.output)
    assert list(reproduce_all([asked], lines.append, failures)) == [replace(result, created=ANY)]
    assert state(asked.output) == before
    assert len(lines) == 4  # nothing was to do

    _check_against_the_library(asked, result)
    _check_the_record(asked, result)
    kinds = {path.suffix for path in write_result(result, asked.results / "tiny")}
    assert kinds == {".md", ".tex", ".csv", ".png", ".svg"}


def test_runs_that_another_table_trained_are_measured_only(done):
    for planned in done.grid():
        (planned.folder / "measurements.jsonl").unlink()
    lines = []
    list(reproduce_all([done], lines.append, {}))
    names = [planned.name for planned in done.grid()]
    assert lines == ["table-geometry: 2 of 2 runs to measure", *(f"done   {name}: measured" for name in names)]


def test_records_stand_in_for_runs_whose_folder_is_gone(done):
    """Numbers on record stay in the table; whether their runs are made again is the caller's choice."""
    asked, result = done, collect(done)
    for planned in asked.grid():
        shutil.rmtree(planned.folder)
    assert replace(collect(asked), created=result.created) == result
    lines = []
    (kept,) = reproduce_all([replace(asked, skip_recorded=True)], lines.append, {})
    assert (lines, kept.rows) == ([], result.rows)
    other = replace(asked, preset=replace(TINY, samples=replace(TINY.samples, geometry=4)))
    assert not any(row["cells"] for row in collect(other).rows)  # measured otherwise, so not the same number

    empty = replace(asked, skip_recorded=True, measure=False, results=asked.results / "other")
    assert len(_pending(empty)) == len(asked.grid())  # to train is not to have measured

    (again,) = reproduce_all([replace(asked, rows=("lcnn",))], lines.append, {})
    assert [line.split()[0] for line in lines] == ["table-geometry:", "done"]
    assert again.rows == result.rows  # the same bits


def test_a_run_trained_anew_forgets_what_was_measured_of_the_old_one(done):
    one = replace(done, rows=("standard",))
    (planned,) = one.grid()
    path = done.records / "runs" / f"{planned.name}.json"
    record = json.loads(path.read_text())
    record["environment"]["started"] = "earlier"
    record["measurements"]["pgd"] = record["measurements"]["geometry"]
    path.write_text(json.dumps(record))
    collect(one)
    assert set(json.loads(path.read_text())["measurements"]) == {"geometry"}
    record["environment"]["started"] = "earlier"
    path.write_text(json.dumps(record))
    (planned.folder / "measurements.jsonl").unlink()
    assert [bool(row["cells"]) for row in collect(one).rows] == [False, True]


def test_pictures_outlive_their_runs(tmp_path):
    """A record holds no pictures: the table keeps its own, and such a run does not count as answered."""
    moons = replace(EXPERIMENTS["figure-moons"], rows=EXPERIMENTS["figure-moons"].rows[:1])
    tiny = replace(TINY, training={"model.width": 4, "train.epochs": 1})
    asked = Request(moons, tiny, tmp_path / "runs", tmp_path, executor="here")
    (result,) = reproduce_all([asked], lambda line: None, {})
    assert result.extra
    for planned in asked.grid():
        shutil.rmtree(planned.folder)
    again = collect(asked)
    assert (again.extra, again.curves, again.rows) == (result.extra, result.curves, result.rows)
    assert len(_pending(replace(asked, skip_recorded=True))) == len(asked.grid())


def test_weights_are_kept_as_runs_with_a_manifest(done, tmp_path):
    """What lies beside the results is all that the verbs need, and says whose it is."""
    results = tmp_path / "elsewhere"
    kept = keep_weights(results, done.grid())
    assert read_manifest(results) == kept and len(kept) == 2
    x = torch.rand(3, 1, 8, 8)
    for planned in done.grid():
        copy = results / "weights" / planned.name
        assert torch.equal(load(copy)(x), load(planned.folder)(x))
        assert kept[planned.name]["sha256"] == Run(copy).summary["weights_sha256"]
        assert str(tmp_path) not in "".join(path.read_text() for path in copy.glob("*[ln]"))  # .toml, .json
    assert len({one["test_samples"] for one in kept.values()}) == 1
    assert keep_weights(results, done.grid()[:1]) == kept  # what is there stays
    (done.grid()[0].folder / "model.safetensors").write_bytes(b"other")
    with pytest.raises(UserError, match="train it again"):
        keep_weights(results, done.grid())


def test_kept_weights_stand_for_a_training(done, tmp_path):
    """Another table of the same runs needs no training: what is measured of kept weights is what was measured."""
    keep_weights(done.results, done.grid())
    elsewhere = replace(done, output=tmp_path / "other runs", results=tmp_path / "other results")
    shutil.copytree(done.results, elsewhere.results)
    names = reuse_weights(elsewhere.results, elsewhere.grid())
    assert names == [planned.name for planned in elsewhere.grid() if planned.trained] and len(names) == 2
    assert reuse_weights(elsewhere.results, elsewhere.grid()) == []  # what is trained stays

    failures = {}
    (again,) = reproduce_all([elsewhere], lambda line: None, failures)
    assert not failures and again.rows == collect(done).rows
    for name in names:  # the epochs, which were not kept with the weights, are still told
        assert load_runs(elsewhere.results)[name]["epochs"] == load_runs(done.results)[name]["epochs"] != []


@pytest.mark.parametrize(
    ("file", "old", "new", "expected"),
    [
        ("manifest.json", '"test_samples": "', '"test_samples": "f', "expected the test samples"),
        ("manifest.json", '"sha256": "', '"sha256": "f', "another run than the manifest says"),
        ("RUN/config.toml", "epochs = ", "epochs = 1", "another run than the manifest says"),
        ("RUN/model.safetensors", "{", "[", "train it again"),
    ],
)
def test_weights_of_something_else_are_not_reused(done, tmp_path, file, old, new, expected):
    """Weights of other data or another recipe would be measured as if they were the run's: they are refused."""
    keep_weights(tmp_path, done.grid())
    elsewhere = replace(done, output=tmp_path / "other runs", results=tmp_path)
    path = tmp_path / "weights" / file.replace("RUN", done.grid()[0].name)
    path.write_bytes(path.read_bytes().replace(old.encode(), new.encode()))
    with pytest.raises(UserError, match=expected):
        reuse_weights(tmp_path, elsewhere.grid())
    assert not elsewhere.grid()[0].trained


def _check_against_the_library(asked, result):
    """The table's curvature is what the library measures of the run's own model on the same samples."""
    from lowcurve.data import load_dataset
    from lowcurve.geometry.curvature import curvature
    from lowcurve.training.runs import load

    row = result.rows[1]
    x, y = load_dataset("digits").subset(64, 32).test.subset(8, seed=0).batch(slice(None))
    found = curvature(load(asked.output / row["runs"][0]), x, y)
    assert row["cells"]["curvature"]["mean"] == pytest.approx(found.curvature.mean().item(), rel=1e-4)
    line = result.curves[0]["lines"][1]
    for share, exceeded in zip(line["x"], line["y"], strict=True):
        assert exceeded == pytest.approx(found.curvature.quantile(1 - share / 100).item(), rel=1e-4)
    assert row["cells"]["accuracy"]["mean"] == pytest.approx(
        100 * Run(asked.output / row["runs"][0]).summary["accuracy"]
    )


def _check_the_record(asked, result):
    """The recipe beside the table is the run's, without paths of this machine."""
    name = result.rows[1]["runs"][0]
    record = load_runs(asked.results)[name]
    path = asked.results / "tiny" / "recipes" / f"{name}.toml"
    assert record["command"] == f"lowcurve train results/tiny/recipes/{name}.toml"
    assert str(asked.results) not in json.dumps(record)
    again, run = read_config(path), Run(asked.output / name)
    assert again.model_copy(update={"output": run.config.output}) == run.config
    assert str(asked.output) not in path.read_text()
    assert set(record["beta"]) == set(run.summary["beta"])
    assert len(record["epochs"]) == 2


def test_a_failed_run_does_not_stop_the_others(asked, tmp_path):
    """One worker finds no data; the other row, already trained, is still in the table."""
    broken = replace(asked, rows=("lcnn",), data="cifar10", data_dir=tmp_path, executor="local")
    lines = []
    failures = {}
    list(reproduce_all([broken], lines.append, failures))
    assert len(failures) == 1
    assert "cifar10" in next(iter(failures.values())).lower().replace("-", "")
    assert lines[-1].startswith("failed")


def test_digests_are_of_the_labels_that_a_run_has_seen(asked):
    config = asked.grid()[0].config
    config = config.model_copy(update={"data": config.data.model_copy(update={"wrong_labels": 0.5})})
    seen, here = train(config).environment["data"], sample_digests(config.samples())
    assert {name: seen[name] for name in here} == here
    clean = sample_digests(config.data.load())
    assert here["train_samples"] != clean["train_samples"] and here["test_samples"] == clean["test_samples"]


def test_a_record_gets_the_checksum_that_an_older_one_lacks(done):
    planned = done.grid()[1]
    found = known(done, planned)
    record = update_record(done.records, planned, found)
    path = done.records / "runs" / f"{planned.name}.json"
    path.write_text(json.dumps({**record, "weights_sha256": ""}))
    assert update_record(done.records, planned, found) == record
    assert record["weights_sha256"] == Run(planned.folder).weights_sha256 != ""


def test_names_are_checked_before_anything_runs():
    for arguments, message in (
        (("table-geometri", "digits"), "did you mean 'table-geometry'"),
        (("table-geometry", "digit"), "did you mean 'digits'"),
    ):
        with pytest.raises(UserError, match=message):
            request(*arguments)
    with pytest.raises(UserError, match="did you mean 'lcnn'"):
        request("table-geometry", "digits", rows=("lccn",))
    with pytest.raises(UserError, match="did you mean 'local'"):
        open_pool("locale", 1, None, {})
    with pytest.raises(UserError, match="key=value"):
        parse_pairs(["epochs"])


def test_the_command_names_what_differs():
    asked = request("table-geometry", "cpu", data="cifar100", overrides={"train.epochs": 3})
    assert asked.command == "lowcurve reproduce table-geometry --preset cpu --data cifar100 --set train.epochs=3"
    more = request("table-geometry", "cpu", seeds=[2], rows=["lcnn"])  # the table has the preset's seeds as well
    assert more.command == "lowcurve reproduce table-geometry --preset cpu --seeds 0,1,2"
    assert request("table-geometry", "cpu", seeds=[1]).command == "lowcurve reproduce table-geometry --preset cpu"
    assert asked.name == "table-geometry-cifar100"


def test_the_list_names_every_experiment():
    shown = CliRunner().invoke(app, ["reproduce", "list"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    assert all(name in shown.output for name in EXPERIMENTS)


def test_show_prints_an_empty_table_and_runs_nothing(tmp_path):
    arguments = ["reproduce", "table-ablations", "--show", "--output", str(tmp_path / "runs")]
    shown = CliRunner().invoke(app, [*arguments, "--results", str(tmp_path / "results")], env={"COLUMNS": "200"})
    assert shown.exit_code == 0, shown.output
    assert "no runs yet" in shown.output
    assert "358.86" in shown.output  # the paper's
    assert not (tmp_path / "runs").exists()


def test_the_demo_from_nothing_to_a_page(tmp_path, monkeypatch):
    """The command itself, with a training of one epoch and few samples."""
    from lowcurve.experiments import demo

    short = {**demo.PRESET.training, "train.epochs": 1, "data.limit_train": 64, "data.limit_test": 16, "model.width": 4}
    moons = {**demo.PRESET.by_data["moons"], "train.epochs": 1, "data.limit_test": 50}
    preset = replace(demo.PRESET, training=short, by_data={"moons": moons}, samples=TINY.samples)
    monkeypatch.setattr(demo, "PRESET", preset)
    monkeypatch.setattr(demo, "_MOONS_ROWS", ("standard", "lcnn"))
    monkeypatch.setattr("lowcurve.experiments.reproduce.open_pool", lambda *_: nullcontext(_here))
    shown = CliRunner().invoke(app, ["demo", "--output", str(tmp_path)], env={"COLUMNS": "200"})
    assert shown.exit_code == 0, shown.output
    assert f"Report: {tmp_path / 'report.html'}" in shown.output
    page = (tmp_path / "report.html").read_text()
    for text in ("Four methods on digits", "certified ε = 0.1", "Saliency maps", 'type="range"', "data:image/png"):
        assert text in page

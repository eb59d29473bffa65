"""What is committed in results/ hangs together: every number comes from a run whose recipe and record are there."""

import hashlib
import statistics
from pathlib import Path

import pytest

from lowcurve.experiments import EXPERIMENTS, experiment_of
from lowcurve.experiments.claims import Claim
from lowcurve.experiments.grid import fingerprint
from lowcurve.experiments.results import load_results, load_runs
from lowcurve.experiments.weights import read_manifest
from lowcurve.report.write import index
from lowcurve.training.config import read_config

ROOT = Path(__file__).parents[2] / "results"
RESULTS = load_results(ROOT) if any(ROOT.glob("*/*.json")) else {}
RECIPES = sorted(ROOT.glob("*/recipes/*.toml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_trains_the_run_that_it_names(path):
    config = read_config(path)
    assert config.run_name == path.stem
    assert config.run_name.endswith(f"-s{config.train.seed}-{fingerprint(config)}")
    assert (config.data.dir, config.output) == (None, Path("runs"))


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_number_is_a_mean_over_recorded_runs(path):
    result, records = RESULTS[path], load_runs(path.parent)
    name = result.experiment
    experiment = EXPERIMENTS[experiment_of(name)]
    if experiment.together:
        return
    scales = {column["key"]: column["scale"] for column in result.columns}
    for row in result.rows:
        measured = {
            str(records[name]["seed"]): {
                key: value
                for measurement in experiment.measurements
                for key, value in records[name]["measurements"].get(measurement.name, {"values": {}})["values"].items()
            }
            for name in row["runs"]
        }
        measured = {seed: {**values, **experiment.derive(values)} for seed, values in measured.items()}
        for key, cell in row["cells"].items():
            assert cell["mean"] == pytest.approx(statistics.fmean(cell["values"].values()))
            for seed, value in cell["values"].items():
                assert value == pytest.approx(scales[key] * measured[seed][key])


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_verdicts_follow_from_the_numbers(path):
    result = RESULTS[path]
    cells = {(row["key"], key): cell["values"] for row in result.rows for key, cell in row["cells"].items()}
    for verdict in result.verdicts:
        claim = Claim(verdict["text"], verdict["formula"])
        found = [cells.get(cell, {}) for cell in claim.cells]
        shared = set(found[0]).intersection(*found)
        means = [
            statistics.fmean(value for seed, value in one.items() if seed in shared or not shared)
            for one in found
            if one
        ]
        value = claim.value(dict(zip(claim.cells, means, strict=False)).get) if all(found) else None
        low, high = verdict["low"], verdict["high"]
        assert verdict["ours"] == (value if value is None else pytest.approx(value))
        assert verdict["verdict"] == claim.judge_interval(value, low, high)
        alone = {
            claim.judge(claim.value({cell: one[seed] for cell, one in zip(claim.cells, found, strict=True)}.get))
            for seed in shared
        }
        assert len(alone) < 2 or verdict["verdict"] == "cannot tell"  # seeds that contradict each other
        assert low is None or low <= value <= high


@pytest.mark.skipif(not RESULTS, reason="no results are committed")
def test_the_index_shows_every_result_and_every_linked_file_is_there():
    import re
    from urllib.parse import unquote

    text = (ROOT / "README.md").read_text()
    assert text == index(ROOT)  # made by the code from these files
    for result in RESULTS.values():
        assert f"<summary>{result.experiment} ({result.preset})" in text
    for link in re.findall(r"\]\((?!http)([^)#]+)\)", text):
        assert (ROOT / unquote(link)).exists(), link


@pytest.mark.parametrize("name", read_manifest(ROOT))
def test_weights_are_those_of_the_manifest(name):
    kept, data = read_manifest(ROOT)[name], (ROOT / "weights" / name / "model.safetensors").read_bytes()
    assert (hashlib.sha256(data).hexdigest(), len(data)) == (kept["sha256"], kept["bytes"])
    assert read_config(ROOT / "weights" / name / "config.toml").run_name == name
    recorded = [records[name] for records in map(load_runs, ROOT.glob("*/")) if name in records]
    assert {record.get("weights_sha256") for record in recorded} == {kept["sha256"]}

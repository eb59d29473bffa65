"""A result holds the statistics of what was measured, survives its file, and judges by the mean."""

import json
from dataclasses import replace

import numpy
import pytest

from lowcurve.errors import UserError
from lowcurve.experiments import EXPERIMENTS
from lowcurve.experiments.discrepancy import gaps
from lowcurve.experiments.results import load_results, tabulate
from tests.report.example import MEASURED, RUNS, example


def test_cells_are_mean_and_sample_deviation():
    table = tabulate(EXPERIMENTS["table-geometry"], MEASURED, RUNS)
    row = next(row for row in table["rows"] if row["key"] == "standard")
    values = [MEASURED["standard"][seed]["curvature"] for seed in (0, 1)]
    assert row["cells"]["curvature"]["mean"] == pytest.approx(numpy.mean(values))
    assert row["cells"]["curvature"]["std"] == pytest.approx(numpy.std(values, ddof=1))
    assert row["cells"]["accuracy"]["mean"] == pytest.approx(100 * numpy.mean([0.9, 0.92]))
    assert row["paper"]["curvature"] == [270.89, 75.04]


def test_one_seed_has_no_spread_and_a_missing_row_no_cells():
    table = tabulate(EXPERIMENTS["table-geometry"], MEASURED, RUNS)
    rows = {row["key"]: row for row in table["rows"]}
    assert rows["lcnn"]["cells"]["curvature"]["std"] is None
    assert rows["cure"]["cells"] == {}
    assert rows["cure"]["paper"]["curvature"][0] == 116.31


def test_verdicts_use_means_and_list_seeds():
    table = tabulate(EXPERIMENTS["table-geometry"], MEASURED, RUNS)
    halves = next(v for v in table["verdicts"] if v["formula"] == "curvature[lcnn] / curvature[standard] <= 0.5")
    assert halves["ours"] == pytest.approx(10.0 / 100.0)  # on the seed that both have
    assert halves["seeds"] == {"0": pytest.approx(0.1)}  # seed 1 has no LCNN
    assert halves["verdict"] == "holds"


def test_a_result_survives_its_file(tmp_path):
    result = example()
    path = result.save(tmp_path)
    assert path == tmp_path / "digits" / "table-geometry.json"
    assert load_results(tmp_path) == {path: result}
    later = replace(result, created="2027-01-01T00:00:00+00:00", environment={"lowcurve": "9"})
    later.save(tmp_path)  # `reproduce --show` collects anew and has measured nothing
    assert load_results(tmp_path) == {path: result}
    changed = replace(later, notes=["another"])
    changed.save(tmp_path)
    assert load_results(tmp_path) == {path: changed}
    assert not result.complete


def test_not_a_number_is_refused(tmp_path):
    broken = replace(example(), notes=[float("nan")])
    with pytest.raises(ValueError, match="JSON"):
        broken.save(tmp_path)
    assert not list(tmp_path.rglob("*.json"))


def test_other_json_is_left_alone_and_nothing_is_an_error(tmp_path):
    (tmp_path / "other.json").write_text(json.dumps([1, 2]))
    with pytest.raises(UserError, match="lowcurve reproduce"):
        load_results(tmp_path)


def test_discrepancy_divides_by_the_train_value():
    found = gaps({"hessian_norm": 12.0, "train_hessian_norm": 2.0, "accuracy": 0.5, "train_accuracy": 0.4})
    assert found == {"gap_hessian_norm": 5.0}

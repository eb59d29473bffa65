"""What is measured of a run is kept in lines that are added, found again, and never taken for other weights'."""

import json

import pytest

from lowcurve.errors import UserError
from lowcurve.evaluation.measurement import Task
from lowcurve.evaluation.store import find_taken, missing, take, taken

COUNT = {"calls": 0}


def count(subject, settings):
    COUNT["calls"] += 1
    return {"calls": COUNT["calls"]}


@pytest.fixture
def run(tmp_path):
    (tmp_path / "summary.json").write_text(json.dumps({"weights_sha256": "a"}))
    return tmp_path


FEW, MANY = Task("count", count, {"samples": 2}), Task("count", count, {"samples": 200})


def test_lines_are_added_and_found_by_name_and_settings(run):
    assert missing(run, [FEW, MANY]) == [FEW, MANY]
    take(FEW, None, run)
    before = (run / "measurements.jsonl").read_bytes()
    take(MANY, None, run)
    assert (run / "measurements.jsonl").read_bytes().startswith(before)
    assert missing(run, [FEW, MANY]) == []
    assert find_taken(taken(run), FEW)["values"]["calls"] + 1 == find_taken(taken(run), MANY)["values"]["calls"]
    assert missing(run, [Task("other", count, {"samples": 2})]) != []


@pytest.mark.parametrize(
    "torn", [b'{"name": "count", "val', b"\xff\xfe", b"[1, 2]", b'{"name": 3}', b"null", b"[" * 10**5]
)
def test_a_torn_or_foreign_line_costs_only_itself(run, torn):
    take(FEW, None, run)
    with (run / "measurements.jsonl").open("ab") as file:
        file.write(torn)
    assert missing(run, [FEW, MANY]) == [MANY]
    take(MANY, None, run)
    assert missing(run, [FEW, MANY]) == []


def test_other_weights_are_measured_anew(run):
    take(FEW, None, run)
    (run / "summary.json").write_text(json.dumps({"weights_sha256": "b"}))
    assert missing(run, [FEW]) == [FEW]


def test_files_of_earlier_versions_are_read(run):
    (run / "experiments").mkdir()
    old = {"values": {"calls": 7}, "settings": {"samples": 2}, "seed": 0, "seconds": 0.1, "environment": {}}
    (run / "experiments" / "count.json").write_text(json.dumps(old))
    (run / "experiments" / "damaged.json").write_text("{")
    assert missing(run, [FEW]) == []
    assert find_taken(taken(run), FEW)["values"] == {"calls": 7}


@pytest.mark.parametrize(
    "values", [{"a b": 1}, {"a": float("nan")}, {"a": float("inf")}, {"a": {1, 2}}, [1], None, {1: 1j}]
)
def test_what_cannot_be_read_again_is_refused_when_it_is_taken(run, values):
    with pytest.raises(UserError, match="measurement 'odd': expected finite numbers"):
        take(Task("odd", lambda subject, settings: values, {}), None, run)
    assert taken(run) == []

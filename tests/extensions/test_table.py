"""A table from outside the package: its own measurement, rows and claims; trained, measured, judged and reported."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import lowcurve as lc
from lowcurve.cli import app
from lowcurve.evaluation.measurement import Measurement
from lowcurve.experiments.claims import Claim
from lowcurve.experiments.experiment import Column, Experiment, rows


def confidence(subject, settings):
    x, _ = subject.samples(settings["samples"])
    return {"confidence": subject.model(x).softmax(1).amax(1).mean().item(), "samples": len(x)}


MINE = Experiment(
    name="mine",
    title="How sure are smooth networks?",
    rows=rows("standard", "lcnn"),
    measurements=(Measurement("confidence", confidence),),
    columns=(Column("confidence", "mean confidence (%)", 1, "none", 100.0), Column("samples", "samples", 0, "none")),
    paper={"lcnn": {"confidence": (90.0, 1.0)}},
    claims=(Claim("LCNN is less sure", "confidence[lcnn] − confidence[standard] <= 0"),),
)
FEW = ["model.width=4", "train.epochs=1", "data.limit_train=64", "data.limit_test=32"]


def test_it_is_trained_measured_judged_and_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(lc.EXPERIMENTS, "table-confidence", MINE)  # its name is the key's
    places = ["--output", str(tmp_path / "runs"), "--results", str(tmp_path / "results")]
    few = [word for pair in FEW for word in ("--set", pair)]
    run = ["reproduce", "table-confidence", "--seeds", "0", "--jobs", "1", *places, *few]
    shown = CliRunner().invoke(app, run, env={"COLUMNS": "200"})
    assert shown.exit_code == 0, shown.output
    assert "LCNN is less sure" in shown.output
    result = json.loads((tmp_path / "results/digits/table-confidence.json").read_text())
    assert [row["cells"]["samples"]["mean"] for row in result["rows"]] == [32.0, 32.0]
    assert all(10 <= row["cells"]["confidence"]["mean"] <= 100 for row in result["rows"])
    page = tmp_path / "page.html"
    assert CliRunner().invoke(app, ["report", str(tmp_path / "results"), "--output", str(page)]).exit_code == 0
    assert "How sure are smooth networks?" in page.read_text()
    assert "90.0 ± 1.0" in page.read_text()
    assert "to do" not in CliRunner().invoke(app, run).output  # nothing is measured twice

"""`lowcurve certify` from the command line: the table, the files, the refusals."""

import csv
import json

import pytest
import torch
from typer.testing import CliRunner

import lowcurve as lc
from lowcurve.cli import app

FACTORIES = """
import torch
from torch import nn
import lowcurve as lc

def good():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), lc.spectral_norm(nn.Linear(64, 12)), lc.CenteredSoftplus(1.0), nn.Linear(12, 10))

def steep():
    layers = [nn.Flatten()]
    for _ in range(6):
        layers += [nn.Linear(64, 64), nn.ReLU()]
    net = nn.Sequential(*layers, nn.Linear(64, 10))
    for p in net.parameters():
        nn.init.normal_(p)
    return net

def kinked():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 10))


def odd():
    return nn.Sequential(nn.Flatten(), nn.LayerNorm(64), nn.Linear(64, 10))
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    (tmp_path / "nets_to_certify.py").write_text(FACTORIES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def call(*arguments):
        return CliRunner().invoke(app, ["certify", *arguments])

    return call


def test_what_is_unbounded_has_no_share(run, tmp_path):
    """Each of several ReLU bends without bound: 100 % for all of them would be none of them."""
    shown = run("nets_to_certify:kinked", "--data", "digits", "--samples", "2", "--output", str(tmp_path / "out"))
    assert shown.exit_code == 0, shown.output
    activations = [line for line in shown.output.splitlines() if "Activation" in line]
    assert len(activations) == 2 and all(line.rstrip().endswith("∞") for line in activations)


def test_files_agree_with_the_library(run, tmp_path):
    result = run("nets_to_certify:good", "--data", "digits", "--samples", "40", "--output", str(tmp_path / "out"))
    assert result.exit_code == 0, result.output
    assert "share of curvature" in result.output and "certified" in result.output
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    rows = list(csv.DictReader((tmp_path / "out" / "samples.csv").open()))
    assert summary["samples"] == len(rows) == 40
    assert {p.name for p in (tmp_path / "out").iterdir()} == {"curve.png", "curve.svg", "samples.csv", "summary.json"}

    from nets_to_certify import good

    from lowcurve.data import load_dataset

    x, y = load_dataset("digits").test.subset(40, 0).batch(slice(None))
    expected = lc.certify(good().eval(), x, y, local=True)
    assert torch.allclose(torch.tensor([float(row["radius"]) for row in rows]).double(), expected.radius, atol=1e-6)
    for row in rows:
        if row["correct"] == "True":
            assert float(row["lipschitz_radius"]) <= float(row["radius"]) <= float(row["attack_distance"])
    assert summary["accuracy"] == expected.correct.double().mean()
    assert summary["certified_accuracy"]["0.05"] == expected.accuracy(0.05)
    assert summary["certified_accuracy"][str(36 / 255)] == expected.accuracy(36 / 255)  # where others print it
    assert "\n 0.1412 " in result.output


def test_a_vacuous_certificate_is_called_so(run):
    result = run("nets_to_certify:steep", "--data", "digits", "--samples", "60", "--no-layers")
    assert result.exit_code == 0, result.output
    assert "vacuous" in result.output and "--output" in result.output


def test_mistakes_are_explained(run):
    assert "LayerNorm at '1' has no known constants" in str(run("nets_to_certify:odd", "--data", "digits").exception)
    assert "expected --samples" in str(run("nets_to_certify:good", "--data", "digits", "--samples", "x").exception)


def test_curves_bracket_the_unknown():
    from lowcurve.guarantees.curve import curves
    from lowcurve.types import Certificate

    radius = torch.tensor([0.0, 0.1, 0.3], dtype=torch.float64)
    certificate = Certificate(radius, radius / 2, radius, radius > 0, "test", {})
    lines = curves(certificate, torch.tensor([0.0, 0.2, torch.inf], dtype=torch.float64), count=7)
    assert bool((lines.lipschitz <= lines.certified).all() and (lines.certified <= lines.attacked).all())
    assert float(lines.certified[0]) == pytest.approx(2 / 3)

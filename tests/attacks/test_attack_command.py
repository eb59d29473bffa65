import csv
import math
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lowcurve.cli import app
from lowcurve.errors import UserError

ZOO = """
import torch
from torch import nn

def make(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

def first(): return make(0)
def second(): return make(1)
"""
FAST = ["--data", "digits", "--samples", "30", "--attacks", "fgsm,pgd", "--radii", "0.02,0.1", "--steps", "pgd=3"]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "zoo_of_attacks.py").write_text(ZOO)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("COLUMNS", "160")

    def invoke(*arguments: str) -> str:
        result = CliRunner().invoke(app, ["attack", "zoo_of_attacks:first", *arguments], catch_exceptions=False)
        assert result.exit_code == 0
        return result.output

    return invoke


def test_two_models_with_everything(run, tmp_path: Path) -> None:
    more = ["--versus", "zoo_of_attacks:second", "--distances", "2", "--saliency", "3", "--output", "out"]
    output = run(*FAST, *more)
    for expected in (
        "Digits",
        "fgsm",
        "pgd",
        "worst",
        "ℓ₂ ≤ 0.02",
        "without attack",
        "nearest mistake",
        "cosine 1.000",
    ):
        assert expected in output
    folder = tmp_path / "out"
    written = {
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"
    }
    own = {"settings.json", "samples.csv", "summary.json"}
    other = {f"versus-zoo_of_attacks-second/{name}" for name in own}
    assert written == own | other | {"curve.png", "saliency.png", "explanations.json", "distances.csv"}
    rows = list(csv.DictReader((folder / "distances.csv").open()))
    assert len(rows) == 4 and all(0 <= float(row["distance"]) < math.inf for row in rows)


def test_again_changes_nothing_and_no_folder_writes_nothing(run, tmp_path: Path) -> None:
    first = run(*FAST, "--output", "out", "--norm", "inf")
    rows = (tmp_path / "out" / "samples.csv").read_text()
    assert run(*FAST, "--output", "out", "--norm", "inf") == first
    assert (tmp_path / "out" / "samples.csv").read_text() == rows
    before = sorted(tmp_path.rglob("*"))
    assert "add --output FOLDER" in run(*FAST)
    assert sorted(p for p in tmp_path.rglob("*") if "__pycache__" not in str(p)) == [
        p for p in before if "__pycache__" not in str(p)
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--radii", "0.1;0.2"], "expected --radii as numbers"),
        (["--norm", "two"], "expected --norm as 2 or inf"),
        (["--norm", "1"], "expected --norm as 2 or inf"),
        (["--steps", "pgd"], "expected --steps such as"),
        (["--attacks", "pdg"], "did you mean 'pgd'"),
        (["--saliency", "2", "--explanation", "gradcam"], "unknown explanation"),
    ],
)
def test_mistakes_are_explained(run, arguments: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        run(*FAST, *arguments)

"""Whole data sets: the table's rows, its statistics, its files, the discrepancy, and the command."""

import csv
import json
import math
import sys
from pathlib import Path

import pyarrow.parquet
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import lowcurve as lc
from lowcurve.cli import app
from lowcurve.commands.measure import _show_stability
from lowcurve.data import load_dataset
from lowcurve.data.dataset import Dataset, Split
from lowcurve.errors import UserError
from lowcurve.geometry.dataset import Measurements, discrepancy, measure
from lowcurve.geometry.stability import Profile
from lowcurve.geometry.summary import summarize
from lowcurve.text import console
from tests.geometry.conftest import mlp, train


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_dataset("digits")


@pytest.fixture(scope="module")
def net() -> nn.Module:
    torch.manual_seed(0)
    return train(mlp(10), epochs=2)


@pytest.fixture(scope="module")
def table(net: nn.Module, digits: Dataset) -> Measurements:
    return measure(net, digits.test, count=60, batch_size=25)


def test_rows_are_those_of_curvature(net: nn.Module, digits: Dataset, table: Measurements) -> None:
    assert len(table) == 60
    x, y = digits.test.batch(table["index"])
    loss, margin = lc.curvature(net, x, y), lc.curvature(net, x, y, of="margin")
    assert torch.equal(table["label"], y)
    assert torch.allclose(table["curvature"], loss.curvature, rtol=1e-3)
    assert torch.allclose(table["gradient_norm"], loss.gradient_norm, rtol=1e-4)
    assert torch.allclose(table["margin_hessian_norm"], margin.hessian_norm, rtol=1e-3)
    assert torch.allclose(table["loss"], nn.functional.cross_entropy(net(x), y, reduction="none"), atol=1e-5)
    assert table.accuracy == pytest.approx((net(x).argmax(dim=1) == y).float().mean().item())


def test_counts_shares_and_seeds(net: nn.Module, digits: Dataset) -> None:
    def indices(count, seed: int = 0) -> torch.Tensor:
        return measure(net, digits.test, count=count, of=("loss",), seed=seed)["index"]

    assert len(indices(0.05)) == round(0.05 * len(digits.test))
    assert torch.equal(indices(20), indices(20)) and not torch.equal(indices(20), indices(20, seed=1))
    assert torch.equal(indices(None), torch.arange(len(digits.test)))
    assert len(indices(20).unique()) == 20
    for count in (0, 0.0, 1.5, -3):
        with pytest.raises(UserError, match=r"expected a share|at least 1 sample"):
            indices(count)
    with pytest.raises(UserError, match="did you mean 'margin'"):
        measure(net, digits.test, of=("margins",))


def test_summary_is_textbook_statistics() -> None:
    values = torch.tensor([1.0, 2.0, 3.0, 4.0, 90.0, math.nan, math.inf])
    found = summarize(values)
    assert (found.count, found.not_finite, found.mean, found.median) == (5, 2, 20.0, 3.0)
    deviation = math.sqrt(sum((v - 20) ** 2 for v in (1, 2, 3, 4, 90)) / 4)
    assert found.standard_error == pytest.approx(deviation / math.sqrt(5))
    assert found.quantiles[0.25] == 2 and found.quantiles[0.75] == 4
    assert found.top_share == pytest.approx(0.9)
    assert str(found) == "20 ± 18 (median 3)"
    nothing = summarize(torch.tensor([math.nan]))
    assert nothing.count == 0 and nothing.to_dict()["mean"] is None


def test_files_hold_every_row(table: Measurements, tmp_path: Path) -> None:
    rows = list(csv.DictReader(table.to_csv(tmp_path / "deep" / "rows.csv").open()))
    columns = pyarrow.parquet.read_table(table.to_parquet(tmp_path / "rows.parquet")).to_pydict()
    assert len(rows) == 60 and list(rows[0]) == list(columns) == list(table.columns)
    for name in table.columns:
        assert columns[name] == table[name].tolist()
        assert [float(row[name]) for row in rows] == pytest.approx(table[name].tolist(), rel=1e-6)
    assert {path.name for path in tmp_path.rglob("*.*")} == {"rows.csv", "rows.parquet"}  # no leftovers


def test_discrepancy_is_relative_to_the_training_data() -> None:
    def of(values: list[float]) -> Measurements:
        return Measurements({"index": torch.arange(2), "curvature": torch.tensor(values), "loss": torch.zeros(2)})

    found = discrepancy(train=of([1.0, 3.0]), test=of([20.0, 30.0]))
    assert set(found) == {"curvature"}
    assert found["curvature"].by_train == pytest.approx(11.5) and found["curvature"].by_test == pytest.approx(0.92)
    ratio_error = 12.5 * math.hypot(5 / 25, 1 / 2)
    assert found["curvature"].standard_error == pytest.approx(ratio_error)
    assert math.isnan(discrepancy(of([0.0, 0.0]), of([1.0, 1.0]))["curvature"].by_train)


def test_broken_samples_are_counted(net: nn.Module) -> None:
    class Breaks(nn.Module):
        """Divides by zero where an image is black."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            brightest = x.flatten(1).amax(1, keepdim=True)
            return net(x) * (brightest / brightest)

    images = torch.rand(6, 1, 8, 8)
    images[2] = 0.0
    table = measure(Breaks(), Split(images, torch.zeros(6, dtype=torch.long)), of=("loss",), max_iterations=2)
    assert table.summary("curvature").not_finite == 1 and math.isfinite(table.summary("curvature").mean)
    assert table.caveats(1e-9).startswith(", 1 not finite, 5 stopped")
    assert table.caveats(10.0) == ", 1 not finite"


@pytest.fixture
def factory(monkeypatch: pytest.MonkeyPatch, net: nn.Module) -> str:
    import types

    module = types.ModuleType("measured_models")
    module.make = lambda: net
    monkeypatch.setitem(sys.modules, "measured_models", module)
    return "measured_models:make"


def test_the_command_prints_and_writes(factory: str, tmp_path: Path) -> None:
    arguments = ["measure", factory, "--data", "digits", "--samples", "24", "--stability", "3", "--adversarial"]
    result = CliRunner().invoke(app, [*arguments, "--output", str(tmp_path), "--parquet"], env={"COLUMNS": "120"})
    assert result.exit_code == 0, result.output
    for phrase in ("loss C_f", "margin ‖∇²f‖", "heavy-tailed", "adversarial", "train: 24 samples"):
        assert phrase in result.output
    summary = json.loads((tmp_path / "summary.json").read_text())
    rows = pyarrow.parquet.read_table(tmp_path / "test.parquet").to_pydict()
    mean = sum(rows["curvature"]) / len(rows["curvature"])
    assert summary["geometry"]["test"]["curvature"]["mean"] == pytest.approx(mean, rel=1e-5)
    assert summary["settings"]["count"] == 24 and len(summary["stability"]["random"]["mean"]) == 9


def test_predictions_are_compared_as_medians(capsys: pytest.CaptureFixture[str]) -> None:
    """A mean of r·C_f beside a median of e^(r·C_f) − 1 contradicted e^t − 1 ≥ t where curvatures are heavy-tailed."""
    quadratic = torch.tensor([[0.001, 0.001, 0.1]])
    profile = Profile(torch.tensor([0.001]), quadratic[:, None], quadratic, quadratic.expm1())
    _show_stability(console(), {"random": profile})
    *_, last = capsys.readouterr().out.strip().splitlines()
    mean, linear, sharp = map(float, last.split()[-3:])
    assert (mean, linear) == (0.034, 0.001) and sharp >= linear


def test_the_command_names_mistakes(factory: str) -> None:
    for extra, message in ((["--samples", "many"], "a share such as 0.1"), (["--samples", "2.0"], "got '2.0'")):
        result = CliRunner().invoke(app, ["measure", factory, "--data", "digits", *extra])
        assert isinstance(result.exception, UserError)
        with pytest.raises(UserError, match=message):
            raise result.exception

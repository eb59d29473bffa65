import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from lowcurve import MODELS, convert
from lowcurve.cli import app
from lowcurve.errors import UserError
from lowcurve.geometry.compare import compare


def tiny() -> nn.Module:
    """The factory that the command is pointed at."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return MODELS["convnet"](num_classes=10, in_channels=1, width=4, image_size=8)


def test_softplus_before_and_after_by_closed_form():
    # Logits (s₀(x), 0) of a single number: margin m = s₀(x), so |m'| = σ(βx) and |m''| = βσ(1 - σ).
    class Net(nn.Module):
        def __init__(self, beta):
            super().__init__()
            self.act = nn.Softplus(beta)

        def forward(self, x):
            return torch.cat([self.act(x), torch.zeros_like(x)], 1)

    x = torch.full((2, 1), 0.3)
    rows = {row.quantity: row for row in compare(Net(4.0), Net(2.0), x, torch.zeros(2, dtype=torch.long))}
    for beta, side in [(4.0, "before"), (2.0, "after")]:
        sigma = float(torch.sigmoid(torch.tensor(beta * 0.3)))
        assert getattr(rows["gradient norm of margin, median"], side) == pytest.approx(sigma, rel=1e-4)
        assert getattr(rows["Hessian norm of margin, mean"], side) == pytest.approx(
            beta * sigma * (1 - sigma), rel=1e-3
        )
    assert rows["accuracy, %"].before == 100


def test_kinks_are_measured_as_a_sharp_softplus():
    net = nn.Sequential(nn.Linear(1, 2, bias=False), nn.ReLU())
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([[1.0], [0.0]]))
    low, _ = convert(net, torch.zeros(1, 1), spectral=False, init_beta=5.0)
    rows = {row.quantity: row for row in compare(net, low, torch.full((2, 1), 1e-6))}
    assert rows["Hessian norm of margin, median"].before == 0  # as `curvature` and `measure` say
    assert rows["Hessian norm of margin, median"].stand_in == pytest.approx(250, rel=1e-3)  # β/4 at the kink
    assert rows["Hessian norm of margin, median"].after == pytest.approx(1.25, rel=1e-3)


def test_a_model_without_logits_is_named():
    class Wrapped(nn.Module):
        def forward(self, x):
            return {"scores": x}

    with pytest.raises(UserError, match=r"returns logits, .* got dict"):
        compare(Wrapped(), Wrapped(), torch.rand(2, 3))


@pytest.mark.parametrize("source", [["--data", "digits"], ["--input-size", "1,8,8"]])
def test_the_command_prints_the_report_and_the_measurements(source):
    result = CliRunner().invoke(app, ["convert", "tests.geometry.test_compare:tiny", "--samples", "4", *source])
    assert result.exit_code == 0, result.output
    words = result.output.split()
    assert words.count("CenteredSoftplus") == 5  # a row per site
    assert "curvature of margin, median" in result.output
    assert ("accuracy, %" in result.output) == (source[0] == "--data")


def test_the_command_names_a_bad_size():
    result = CliRunner().invoke(app, ["convert", "tests.geometry.test_compare:tiny", "--input-size", "1x8x8"])
    assert isinstance(result.exception, UserError) and "3,32,32" in str(result.exception)

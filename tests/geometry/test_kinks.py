"""Kinks have no Hessian: said where it happens, counted right, and seen through a stand-in; all verbs agree."""

import json
import signal
import subprocess
import sys
import time
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from typer.testing import CliRunner

import lowcurve as lc
from lowcurve.cli import app
from lowcurve.data import load_dataset
from lowcurve.errors import UserError
from lowcurve.files import lock
from lowcurve.geometry.compare import compare
from lowcurve.geometry.dataset import measure
from lowcurve.geometry.kinks import KinkWarning, kinks, smooth_stand_in


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.act = nn.Conv2d(1, 3, 3), nn.Linear(12, 4), nn.GELU()

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.first(x)), 2)
        x = torch.relu(x - 0.1).clamp(max=3.0)
        return self.second(self.act(x).flatten(1).abs())


def relu_net() -> nn.Module:
    """The factory that the commands are pointed at."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10)).eval()


def test_kinks_are_named_and_counted() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Tanh(), nn.ELU(), nn.ELU(0.5), nn.Flatten())
    assert kinks(net, torch.rand(1, 1, 6, 6)) == {"ReLU": 1, "MaxPool2d": 1, "ELU": 1}
    found = kinks(Functional(), torch.rand(1, 1, 6, 6))
    assert found == {"F.relu": 2, "F.max_pool2d": 1, "x.clamp()": 1, "x.abs()": 1}
    low, _ = lc.convert(net, torch.rand(1, 1, 6, 6))
    assert kinks(low, torch.rand(1, 1, 6, 6)) == {"MaxPool2d": 1}


def test_one_warning_a_call_and_none_for_smooth_nets() -> None:
    x, y = torch.rand(3, 1, 8, 8), torch.tensor([0, 1, 2])
    low, _ = lc.convert(relu_net(), x)
    calls = [lambda net: lc.curvature(net, x, y), lambda net: lc.gradient_stability(net, x, y, [0.1], 1)]
    calls.append(lambda net: measure(net, load_dataset("digits").test, count=5, batch_size=2, max_iterations=2))
    for call in calls:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call(relu_net())
        assert [str(w.message).split(". ")[0] for w in caught if w.category is KinkWarning] == [
            "the model has kinks, which have no Hessian: 1 ReLU"
        ]
        with warnings.catch_warnings():
            warnings.simplefilter("error", KinkWarning)
            call(low)


def test_a_stand_in_is_the_softplus_net_and_leaves_smooth_activations() -> None:
    x, y = torch.rand(4, 1, 8, 8), torch.tensor([0, 1, 2, 3])
    net = relu_net()
    smooth = nn.Sequential(net[0], net[1], lc.CenteredSoftplus(50.0), net[3])
    with warnings.catch_warnings():
        warnings.simplefilter("error", KinkWarning)
        found = lc.curvature(net, x, y, stand_in=50.0)
    assert torch.allclose(found.hessian_norm, lc.curvature(smooth, x, y).hessian_norm, rtol=1e-5)
    mixed = Functional().eval()
    images = torch.rand(2, 1, 6, 6)
    stands = smooth_stand_in(mixed, images, 1e5)
    assert torch.allclose(stands(images), mixed(images), atol=1e-3)
    assert kinks(stands, images) == {"F.max_pool2d": 1, "x.clamp()": 1, "x.abs()": 1}
    with pytest.warns(KinkWarning, match="no softplus stands in for these"):
        lc.curvature(mixed, images, stand_in=1000.0)
    for beta in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(UserError, match="stand_in as a positive number"):
            lc.curvature(net, x, y, stand_in=beta)


def test_all_verbs_agree(tmp_path) -> None:
    target = "tests.geometry.test_kinks:relu_net"
    options = ["--data", "digits", "--samples", "12"]
    x, y = load_dataset("digits").test.subset(12).batch(slice(None))
    low, _ = lc.convert(relu_net(), x[:2])
    rows = {row.quantity: row for row in compare(relu_net(), low, x, y)}
    for stand_in in (None, 1000.0):
        extra = ["--stand-in", "1000"] if stand_in else []
        result = CliRunner().invoke(
            app, ["measure", target, *options, "--stability", "0", "--output", str(tmp_path), *extra]
        )
        assert result.exit_code == 0, result.output
        assert ("stands in" if stand_in else "kinks have no Hessian") in result.output
        written = json.loads((tmp_path / "summary.json").read_text())
        assert written["settings"]["stand_in"] == stand_in
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", KinkWarning)
            truth = lc.curvature(relu_net(), x, y, stand_in=stand_in).curvature.double()
        row = rows["curvature of loss, mean"]
        for number in (written["geometry"]["test"]["curvature"]["mean"], row.stand_in if stand_in else row.before):
            assert number == pytest.approx(float(truth.mean()), rel=1e-5)
    shown = CliRunner().invoke(app, ["convert", target, *options])
    assert "1 ReLU is not seen" in " ".join(shown.output.split()) and f"{row.stand_in:.4g}" in shown.output


def test_a_killed_measurement_goes_on(tmp_path) -> None:
    split = load_dataset("digits").test
    settings = {"count": 40, "batch_size": 8, "max_iterations": 4, "stand_in": 20.0}
    whole = measure(relu_net(), split, **settings)
    path = tmp_path / ".test.rows"

    class Stop(BaseException):
        pass

    def killed(net, inputs):
        nonlocal left
        left -= 1
        if not left:
            raise Stop

    left = 25
    net = relu_net()
    smooth = smooth_stand_in(net, split.batch(slice(1))[0], 20.0)
    smooth.register_forward_pre_hook(killed)
    with pytest.raises(Stop):
        measure(smooth, split, **{**settings, "stand_in": None}, unfinished=path)
    before = path.read_bytes()
    assert before.count(b"\n") >= 2
    path.write_bytes(before + b'{"index": [torn')
    left = 10**9
    resumed = measure(smooth, split, **{**settings, "stand_in": None}, unfinished=path)
    assert path.read_bytes().startswith(before)
    for name, column in whole.columns.items():
        assert torch.equal(column, resumed[name]), name
    other = measure(smooth, split, **{**settings, "stand_in": None, "max_iterations": 2}, unfinished=path)
    assert (other["iterations"] <= 2).all()


def test_sigkill_and_two_at_once(tmp_path) -> None:
    arguments = ["measure", "tests.geometry.test_kinks:relu_net", "--data", "digits", "--samples", "all"]
    arguments += ["--stability", "0", "--max-iterations", "4", "--output", str(tmp_path)]
    first = subprocess.Popen([sys.executable, "-m", "lowcurve", *arguments], stdout=subprocess.DEVNULL)
    rows = tmp_path / ".train.rows"
    while first.poll() is None and (not rows.exists() or rows.read_bytes().count(b"\n") < 3):
        time.sleep(0.01)
    first.send_signal(signal.SIGKILL)
    first.wait()
    begun = rows.read_bytes() if rows.exists() else b""
    with lock(tmp_path):
        second = CliRunner().invoke(app, arguments)
        assert isinstance(second.exception, UserError) and "another process" in str(second.exception)
    assert not begun or rows.read_bytes() == begun
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert len((tmp_path / "train.csv").read_text().splitlines()) == len(load_dataset("digits").train) + 1
    assert not list(tmp_path.glob(".*rows"))


@pytest.mark.parametrize("inplace", [False, True])
def test_hard_sigmoids_are_differentiated_twice(inplace):
    """PyTorch has no second derivative of them; away from their kinks they are affine."""

    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.head = nn.Linear(5, 5).double(), nn.Linear(5, 3).double()

        def forward(self, x):
            return self.head(x * F.hardsigmoid(4 * self.gate(x), inplace))

    torch.manual_seed(0)
    net, x, y = Gated(), torch.rand(3, 5, dtype=torch.float64), torch.tensor([0, 1, 2])

    def loss(point, label):
        gate = (4 * net.gate(point) / 6 + 0.5).clamp(0, 1)
        return F.cross_entropy(net.head(point * gate)[None], label[None])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KinkWarning)
        found = lc.curvature(net, x, y, tol=1e-6)
    truth = [torch.linalg.matrix_norm(torch.func.hessian(loss)(*pair), 2) for pair in zip(x, y, strict=True)]
    torch.testing.assert_close(found.hessian_norm, torch.stack(truth), rtol=1e-4, atol=0)

import csv
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from lowcurve.attacks import attack, flags
from lowcurve.attacks.curves import plot_curves, survival
from lowcurve.attacks.evaluate import evaluate
from lowcurve.attacks.table import AttackedSample, Evaluation, robust_accuracy
from lowcurve.data import load_dataset
from lowcurve.data.dataset import Split
from lowcurve.errors import UserError

ATTACKS = ("fgsm", "pgd", "square")
STEPS = {"pgd": 5, "square": 20}


def run(net: nn.Module, split: Split, folder: Path | None = None, **options) -> Evaluation:
    arguments = {"attacks": ATTACKS, "radii": (0.2, 0.6), "steps": STEPS, "folder": folder, "batch_size": 40}
    return evaluate(net, split, **(arguments | options))


def test_figures_are_those_of_the_attacks(nets: dict[str, nn.Module], digits: Split, tmp_path: Path) -> None:
    result = run(nets["relu"], digits, tmp_path)
    x, y = digits.batch(slice(None))
    worst = torch.zeros(len(y), dtype=torch.bool)
    for name in ATTACKS:
        direct = attack(nets["relu"], x, y, name, eps=0.6, steps=STEPS.get(name))
        assert result.accuracy(name, 0.6) == pytest.approx(direct.accuracy)
        assert result.cell(name, 0.6).samples == len(y)
        worst |= direct.success
    assert result.accuracy("worst", 0.6) == pytest.approx(1 - worst.double().mean().item())
    clean = (nets["relu"](x).argmax(1) == y).double().mean().item()
    assert result.accuracy("clean", 0.0) == pytest.approx(clean)
    assert [cell.eps for cell in result.curve("pgd")] == [0.0, 0.2, 0.6]
    rows = list(csv.DictReader((tmp_path / "samples.csv").open()))
    assert len(rows) == len(y) * len(ATTACKS) * 2 == len(result.rows)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert {(c["attack"], c["eps"]): c["accuracy"] for c in summary["table"]}["pgd", 0.6] == result.accuracy("pgd", 0.6)
    for row in result.rows:
        assert row.distance <= row.eps + 1e-5
        assert row.success == (row.predicted != row.label)


def test_a_torn_file_is_mended_and_only_the_rest_is_computed(
    nets: dict[str, nn.Module], digits: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(nets["lcnn"], digits, tmp_path / "a")
    text = (tmp_path / "a" / "samples.csv").read_text()
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "settings.json").write_text((tmp_path / "a" / "settings.json").read_text())
    (tmp_path / "b" / "samples.csv").write_text(text[: 2 * len(text) // 3])
    again = run(nets["lcnn"], digits, tmp_path / "b", batch_size=17)
    assert [(r.sample, r.attack, r.eps, r.success) for r in again.rows] == [
        (r.sample, r.attack, r.eps, r.success) for r in whole.rows
    ]
    assert (tmp_path / "b" / "samples.csv").read_text().startswith(text[: text.rfind("\n", 0, 2 * len(text) // 3) + 1])
    monkeypatch.setattr("lowcurve.attacks.evaluate.attack", None)  # nothing is left to attack
    assert run(nets["lcnn"], digits, tmp_path / "b").rows == again.rows


SCRIPT = """
import sys
from pathlib import Path
from tests.attacks.test_evaluate import long_evaluation
long_evaluation(Path(sys.argv[1]))
"""


def long_evaluation(folder: Path) -> None:
    """Work of a second or two in many small batches."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    split = load_dataset("digits").test.subset(60)
    evaluate(net, split, ("square",), (0.1, 0.3, 0.5), steps={"square": 60}, batch_size=4, folder=folder)


def test_a_killed_evaluation_goes_on_to_the_same_rows(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "a")]
    victim = subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"})
    rows = tmp_path / "a" / "samples.csv"
    deadline = time.monotonic() + 120
    while not (rows.exists() and rows.stat().st_size > 500) and victim.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    victim.kill()
    victim.wait()
    assert not (tmp_path / "a" / "summary.json").exists()
    partial = rows.read_text()
    for folder in ("a", "b"):
        long_evaluation(tmp_path / folder)
    resumed, straight = (sorted((tmp_path / f / "samples.csv").read_text().splitlines()) for f in ("a", "b"))
    assert resumed == straight and len(partial.splitlines()) < len(straight)
    assert (tmp_path / "a" / "summary.json").read_text() == (tmp_path / "b" / "summary.json").read_text()


def test_more_attacks_and_radii_extend_a_folder(nets: dict[str, nn.Module], digits: Split, tmp_path: Path) -> None:
    run(nets["relu"], digits, tmp_path, attacks=("fgsm",), radii=(0.2,))
    before = (tmp_path / "samples.csv").read_text()
    run(nets["relu"], digits, tmp_path, attacks=("fgsm", "pgd"))
    assert (tmp_path / "samples.csv").read_text().startswith(before)
    longer = run(nets["relu"], digits, tmp_path, attacks=("pgd",), steps={"pgd": 7})
    assert {row.steps for row in longer.rows} == {7}


@pytest.mark.parametrize("change", ["model", "data", "norm", "seed", "restarts"])
def test_another_evaluation_needs_another_folder(change: str, digits: Split, tmp_path: Path) -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    run(net, digits, tmp_path, attacks=("fgsm",))
    options: dict = {"norm": {"norm": math.inf}, "seed": {"seed": 1}, "restarts": {"restarts": 2}}.get(change, {})
    if change == "model":
        nn.init.zeros_(net[1].bias)
    split = digits.subset(50) if change == "data" else digits
    with pytest.raises(UserError, match=f"another {change}; choose another folder"):
        run(net, split, tmp_path, attacks=("fgsm",), **options)


def test_a_name_or_radius_given_twice_counts_once(nets: dict[str, nn.Module], digits: Split) -> None:
    once, twice = (run(nets["relu"], digits, attacks=("fgsm",) * n, radii=(0.2, 1) * n) for n in (1, 2))
    assert once == twice and once.cell("fgsm", 1).samples == len(digits)


def test_mistakes_are_explained(digits: Split) -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    with pytest.raises(UserError, match="did you mean 'square'"):
        run(net, digits, attacks=("sqare",))
    with pytest.raises(UserError, match="unknown attack 'pdg'"):
        run(net, digits, steps={"pdg": 3})
    with pytest.raises(UserError, match="at least one radius"):
        run(net, digits, radii=())


@pytest.mark.parametrize(("hits", "count"), [(0, 20), (7, 20), (20, 20), (359, 500)])
def test_intervals_are_wilsons(hits: int, count: int) -> None:
    z, p = 1.959963984540054, hits / count
    center = (p + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(p * (1 - p) / count + z * z / (4 * count**2))
    found = robust_accuracy("pgd", 0.1, [True] * hits + [False] * (count - hits))
    assert (found.low, found.high) == pytest.approx((max(center - half, 0), min(center + half, 1)), abs=1e-9)
    assert found.accuracy == p


class Blurred(nn.Module):
    """Logits rounded to steps: the gradient is zero everywhere."""

    def forward(self, x: Tensor) -> Tensor:
        return (x.flatten(1)[:, :3] * 8).round()


class Noisy(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 0.1 * torch.randn(len(x), self.out_features)


def test_flags_of_a_model() -> None:
    x, y = torch.rand(30, 6), torch.randint(3, (30,))
    assert flags.of_model(nn.Linear(6, 3), x, y) == []
    assert "30 of 30 samples have a zero gradient" in flags.of_model(Blurred(), x, y)[0]
    assert "random" in flags.of_model(Noisy(6, 3), x, y)[0]
    assert "softmax" in flags.of_model(nn.Sequential(nn.Linear(6, 3), nn.Softmax(1)), x, y)[0]


def table(**broken: dict[float, int]) -> Evaluation:
    """Ten samples; so many of them are broken by each attack at each radius."""
    rows = [
        AttackedSample(sample, 0, 0, name.replace("_", "-"), 1, eps, sample < count, int(sample < count), 0.0)
        for name, radii in broken.items()
        for eps, count in radii.items()
        for sample in range(10)
    ]
    return Evaluation(tuple(rows), 2.0)


def test_flags_of_a_table() -> None:
    assert flags.of_table(table(pgd={0.1: 2, 0.2: 5}, square={0.1: 1, 0.2: 5})) == []
    (flag,) = flags.of_table(table(pgd={0.1: 2}, apgd_t={0.1: 3}, square={0.1: 5}))
    assert "square is 20.0% stronger than every gradient attack at ε = 0.1" in flag
    assert [flag] == flags.of_table(table(pgd={0.1: 2}, apgd_t={0.1: 3}, square={0.1: 5}, auto={0.1: 5}))
    (flag,) = flags.of_table(table(pgd={0.1: 5, 0.2: 3}))
    assert "accuracy under pgd rises from 50.0% at ε = 0.1 to 70.0% at ε = 0.2" in flag


def test_masked_gradients_are_flagged_in_an_evaluation() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(40, 6, generator=generator)
    split = Split(x, Blurred()(x).argmax(1))
    result = evaluate(Blurred(), split, ("pgd", "square"), (0.3,), steps={"pgd": 5, "square": 200})
    assert any("zero gradient" in flag for flag in result.flags)
    assert any("stronger than every gradient attack" in flag for flag in result.flags)


def test_curves_are_drawn(nets: dict[str, nn.Module], digits: Split, tmp_path: Path) -> None:
    from PIL import Image

    evaluations = {name: run(net, digits, attacks=("fgsm", "pgd")) for name, net in nets.items()}
    distances = {name: torch.rand(20) for name in nets}
    plot_curves(evaluations, tmp_path / "curve.png", distances)
    pixels = torch.tensor(list(Image.open(tmp_path / "curve.png").convert("RGB").getdata()))
    for color in ((31, 119, 180), (255, 127, 14)):  # matplotlib's first two: both models are there
        assert (pixels == torch.tensor(color)).all(1).sum() > 200


def test_survival_counts_distances() -> None:
    distance = torch.rand(50)
    radii, share = survival(distance)
    for radius, found in zip(radii.tolist(), share.tolist(), strict=True):
        assert found == pytest.approx(sum(d > radius for d in distance.tolist()) / 50)

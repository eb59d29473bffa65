"""A trained network becomes smooth: β led down, penalties for few steps, smoothness alone, or one β and no training."""

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import update_bn
from typer.testing import CliRunner

import lowcurve as lc
from lowcurve.cli import app
from lowcurve.commands.tune import remarks
from lowcurve.data import load_dataset
from lowcurve.errors import UserError
from lowcurve.evaluation.sweep import Point, estimate_statistics, with_beta
from lowcurve.training import loop
from lowcurve.training.config import parse_config, read_config
from lowcurve.training.fine_tuning import fine_tuning_of
from lowcurve.training.loop import train
from lowcurve.training.runs import Run, load_config
from lowcurve.training.settings import TrainConfig
from lowcurve.training.smoothing import ceiling_at, coefficients, way
from tests.training.makers import quiet_net, recipe, same_bits, weights

X = torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))
SMALL = {"name": "digits", "limit_train": 96, "limit_test": 50, "augmentation": []}


def base() -> nn.Module:
    """A network to start from, always the same."""
    torch.manual_seed(0)
    return quiet_net()


def tuned(folder: Path, **changes: Any) -> Run:
    settings = {"epochs": 2, "batch_size": 32, "lr": 0.01, "checkpoint_seconds": 0, **changes.pop("train", {})}
    method = {"name": "lcnn", "init_beta": 100.0, **changes.pop("method", {})}
    model = {"from": "tests.training.test_fine_tuning:base"}
    return train(recipe(folder, **{"data": SMALL, "model": model, "method": method, "train": settings, **changes}))


class TestCeilings:
    def test_beta_and_gamma_end_below_them(self, tmp_path: Path) -> None:
        run = tuned(tmp_path, train={"final_beta": 4.0, "final_gamma": 0.5})
        assert all(0 < beta <= 4.0 + 1e-4 for beta in run.summary["beta"].values())
        assert all(0 < gamma <= 0.5 + 1e-4 for gamma in run.summary["gamma"].values())
        halfway = ceiling_at(100.0, 4.0, 2 / 6)  # the third of six steps is the last of the first epoch
        assert max(run.metrics[0]["beta"].values()) == pytest.approx(halfway, rel=0.02)

    def test_a_killed_run_ends_with_the_same_bits(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        changes = {"train": {"final_beta": 4.0, "scale_penalties": True, "ema": 0.9}}
        undisturbed = tuned(tmp_path, name="undisturbed", **copy.deepcopy(changes))
        with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
            real, calls = loop.in_pieces, iter(range(9))
            patch.setattr(loop, "in_pieces", lambda *given: real(*given) if next(calls) < 4 else 1 / 0)
            tuned(tmp_path, name="killed", **copy.deepcopy(changes))
        resumed = train(load_config(tmp_path / "killed"), "auto", "tests.training.test_fine_tuning:base")
        assert same_bits(weights(resumed), weights(undisturbed))

    @pytest.mark.parametrize(
        ("tree", "expected"),
        [
            ({"train": {"final_beta": 6.0}}, r"from method.init_beta \(5\), got 6"),
            ({"train": {"final_gamma": 11.0}}, r"from method.init_gamma \(10\), got 11"),
            ({"train": {"scale_penalties": True, "optimizer": "adamw"}}, "leave one out"),
            ({"train": {"only": "weights"}}, "'everything' or 'smoothness'"),
        ],
    )
    def test_mistakes_are_named(self, tree: dict[str, Any], expected: str) -> None:
        with pytest.raises(UserError, match=expected):
            parse_config(tree)

    @pytest.mark.parametrize("settings", [{"final_beta": 4.0}, {"final_gamma": 1.0}, {"only": "smoothness"}])
    def test_a_network_that_learns_neither_is_refused(self, tmp_path: Path, settings: dict[str, Any]) -> None:
        with pytest.raises(UserError, match="such as lcnn"):
            tuned(tmp_path, method={"name": "relu"}, train=settings)


class TestPenalties:
    def test_the_way_is_the_sum_of_rates(self) -> None:
        assert way(TrainConfig(lr=0.2, momentum=0.5, milestones=()), 50) == pytest.approx(0.2 * 50 / 0.5)
        cosine = TrainConfig(lr=0.2, momentum=0.0, schedule="cosine")
        assert way(cosine, 1000) == pytest.approx(100, rel=2e-3)

    def test_the_product_with_the_way_is_the_papers(self) -> None:
        config = parse_config({"train": {"epochs": 2, "scale_penalties": True}, "method": {"init_beta": 50.0}})
        numbers, steps = coefficients(config, 1280), 2 * 10
        assert numbers["lambda_gamma"] * way(config.train, steps) == pytest.approx(1e-5 * way(TrainConfig(), 78_200))
        assert numbers["lambda_beta"] == pytest.approx(numbers["lambda_gamma"] * 10 / 10)  # λβ = 10 λγ, β₀ = 10 · 5

    def test_beta_falls_by_the_same_factor_from_wherever_it_starts(self) -> None:
        ratios = []
        for first in (5.0, 100.0):
            config = parse_config({"train": {"epochs": 10, "scale_penalties": True}, "method": {"init_beta": first}})
            weight, length = coefficients(config, 12800)["lambda_beta"], way(config.train, 1000)
            log, step = math.log(first), length / 100_000
            for _ in range(100_000):  # gradient descent on λβ β alone, in small steps
                log -= step * weight * math.exp(log)
            ratios.append(math.exp(log) / first)
        assert ratios[0] == pytest.approx(ratios[1], rel=1e-6) == pytest.approx(0.0324, rel=0.02)

    def test_they_are_left_alone_by_default(self) -> None:
        config = parse_config({})
        assert coefficients(config, 1000) == config.method.coefficients


def test_smoothness_alone_leaves_every_weight(tmp_path: Path) -> None:
    run = tuned(tmp_path, train={"only": "smoothness", "lr": 0.1, "final_beta": 4.0})
    before, after = lc.convert(base(), X, init_beta=100.0)[0].state_dict(), weights(run)
    changed = {name for name in after if not torch.equal(after[name], before[name])}
    learned = {name for name in after if name.endswith(("log_beta", "log_gamma"))}
    statistics = {name for name in after if name.endswith(("running_mean", "running_var", "num_batches_tracked"))}
    vectors = {name for name in after if name.endswith((".left", ".right"))}
    assert changed <= learned | statistics | vectors and {n for n in learned if "beta" in n} <= changed


class TestOfARun:
    @pytest.fixture(scope="class")
    def source(self, tmp_path_factory: pytest.TempPathFactory) -> Run:
        names = {"output": str(tmp_path_factory.mktemp("runs")), "name": "mine", "method": {"name": "relu"}}
        settings = {"epochs": 3, "batch_size": 32, "lr": 0.05, "channels_last": True}
        data = {**SMALL, "limit_train": 200}
        return train(parse_config({**names, "data": data, "model": {"name": "vgg11", "width": 4}, "train": settings}))

    def test_the_recipe_takes_data_and_batches_from_it(self, source: Run) -> None:
        config = fine_tuning_of(source.folder, ["method.name=lcnn"])
        assert (config.run_name, config.output) == ("mine-fine-tune", source.folder.parent)
        assert config.data == source.config.data and config.model.source == str(source.folder)
        assert (config.train.batch_size, config.train.channels_last, config.train.epochs) == (32, True, 1)
        assert config.method.init_beta >= 50 and config.train.final_beta is not None
        named = read_config("digits-fine-tune", ["model.from=a:b"])
        assert (named.run_name, named.data.name, named.method.name) == ("digits-fine-tune", "digits", "csoftplus-only")

    @pytest.mark.parametrize(("epochs", "expected"), [(11, 1), (20, 1), (23, 2), (200, 18)])
    def test_it_never_takes_more_than_a_tenth(self, tmp_path: Path, epochs: int, expected: int) -> None:
        """A step takes up to a tenth longer: two epochs for twenty would be 11 % of the time."""
        (tmp_path / "config.toml").write_text(f"name = 'mine'\n[train]\nepochs = {epochs}\n")
        assert fine_tuning_of(tmp_path).train.epochs == expected

    def test_the_command_needs_the_run_alone(self, source: Run) -> None:
        words = ["train", "--from", str(source.folder), "--only", "smoothness", "--set", "train.epochs=2"]
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, result.output
        run = Run(source.folder.parent / "mine-fine-tune")
        assert run.config.train.only == "smoothness" and run.finished
        for wrong in (["train"], ["train", "--from", "a:b"], ["train", "--from", str(source.folder), "--only", "x"]):
            assert isinstance(CliRunner().invoke(app, wrong).exception, UserError)

    def test_tune_sweeps_beta(self, source: Run) -> None:
        words = ["tune", str(source.folder), "--betas", "1000,2", "--samples", "12", "--radius", "0.3"]
        words += ["--steps", "pgd=2,apgd-t=2,square=4", "--statistics", "64"]
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, result.output
        assert "as it is" in result.output and "worst of the attacks" in " ".join(result.output.split())
        kept = json.loads((source.folder / "tune" / "summary.json").read_text())
        assert [point["beta"] for point in kept["points"]] == [None, 1000.0, 2.0]
        assert kept["points"][2]["margin_curvature"] < kept["points"][0]["margin_curvature"]
        assert set(kept["points"][0]["robust"]) == {"pgd", "apgd-t", "square", "worst"}


class TestSweep:
    def test_a_global_beta_is_a_centered_softplus_everywhere(self) -> None:
        net = base().eval()
        before = copy.deepcopy(net.state_dict())
        changed = with_beta(net, X[:2], 3.0)
        expected = nn.Sequential(*(Centered() if isinstance(m, nn.ReLU) else m for m in net)).eval()
        assert torch.allclose(changed(X), expected(X), atol=1e-5)
        assert torch.allclose(with_beta(changed, X[:2], 1e5)(X), net(X), atol=1e-3)
        assert same_bits(dict(net.state_dict()), dict(before))

    def test_statistics_are_torchs(self) -> None:
        split = load_dataset("digits").train.subset(120)
        mine, theirs = base().eval(), base()
        estimate_statistics(mine, split)
        update_bn([split.batch(slice(None))[0]], theirs)
        for name, buffer in theirs.named_buffers():
            assert torch.allclose(mine.get_buffer(name).float(), buffer.float(), atol=1e-5)
        assert not mine.training and mine[1].momentum == 0.1

    def test_a_network_without_activations_is_refused(self) -> None:
        with pytest.raises(UserError, match="activations that softplus can replace"):
            with_beta(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), X[:2], 3.0)

    def test_remarks_claim_no_more_than_intervals_allow(self) -> None:
        def point(beta: float | None, worst: float, low: float, high: float) -> Point:
            return Point(beta, 0.9, 1.0, 1.0, {"worst": worst}, low, high, ())

        first = point(None, 0.3, 0.25, 0.35)
        assert "No β is more robust" in remarks([first, point(5.0, 0.4, 0.34, 0.46)])[-1]
        assert "β = 5 is more robust" in remarks([first, point(5.0, 0.5, 0.44, 0.56), point(9.0, 0.2, 0.1, 0.3)])[-1]


class Centered(nn.Module):
    """log((1 + e^{3x}) / 2) / 3, spelled out."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.softplus(x, beta=3.0) - math.log(2) / 3


def test_what_is_held_out_is_not_trained_on() -> None:
    whole = load_dataset("digits")
    parts = whole.held_out(200)
    assert (len(parts.train), len(parts.test)) == (len(whole.train) - 200, 200)
    joined = torch.cat([parts.train.images, parts.test.images]).flatten(1)
    assert torch.equal(joined.sort(0).values, whole.train.images.flatten(1).sort(0).values)
    limited = whole.subset(len(whole.train) - 200).train
    assert torch.equal(parts.train.images, limited.images) and "validation" in parts.title
    shares = [torch.bincount(split.labels) / len(split) for split in (parts.train, parts.test)]
    assert (shares[0] - shares[1]).abs().max() < 0.02
    for wrong in (0, len(whole.train) - 1):
        with pytest.raises(UserError, match="to hold out"):
            whole.held_out(wrong)


def test_a_run_is_judged_on_what_it_holds_out(tmp_path: Path) -> None:
    run = tuned(tmp_path, data={"name": "digits", "validation": 60, "limit_train": 64}, train={"epochs": 1})
    assert run.environment["data"]["test"] == 60 and "validation" in run.environment["data"]["title"]

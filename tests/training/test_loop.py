"""The loop: every method learns digits, a run's folder is complete, options change speed and not results."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from typer.testing import CliRunner

import lowcurve as lc
from lowcurve.cli import app
from lowcurve.data import load_dataset
from lowcurve.digest import digest
from lowcurve.errors import UserError
from lowcurve.layers.normalized import spectral_of
from lowcurve.methods import METHODS
from lowcurve.training.log import Meter
from lowcurve.training.loop import accuracy_and_loss, train
from lowcurve.training.runs import Run, load, load_config
from tests.training.makers import recipe, same_bits, small_net, weights


def test_surgery_leaves_a_skipped_layer_alone_in_training_and_when_loaded(tmp_path: Path) -> None:
    model = {"name": "mlp", "width": 8, "skip": ["7"]}
    run = train(recipe(tmp_path, model=model, method={"name": "lcnn"}, train__epochs=1))
    net = load(run)
    assert [spectral_of(layer) is None for layer in net if isinstance(layer, torch.nn.Linear)] == [False] * 3 + [True]
    with pytest.raises(UserError, match=r"done with model.skip = \['7'\]"):
        train(recipe(tmp_path, name="finer", model={"from": str(run.folder)}, method={"name": "lcnn"}))
    train(recipe(tmp_path, name="fine", model={"from": str(run.folder), "skip": ["7"]}, method={"name": "lcnn"}))


@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns_digits(tmp_path: Path, method: str) -> None:
    """Fixed activations in the library's own MLP; what needs surgery starts from a plain net with batch norm."""
    fixed = not METHODS[method].converts
    run = train(
        recipe(
            tmp_path,
            method={"name": method},
            model={"name": "mlp", "width": 32} if fixed else {"from": "tests.training.makers:small_net"},
            data={"name": "digits", "limit_train": 600, "limit_test": 200},
            train={"epochs": 6, "batch_size": 30, "lr": 0.1, "evaluate_every": 6},
        )
    )
    losses = [row["loss"] for row in run.metrics]
    assert losses[-1] < 0.7 * losses[0]
    assert run.summary["accuracy"] > 0.7


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(recipe(tmp_path_factory.mktemp("finished")))


class TestFolder:
    def test_it_holds_what_the_documentation_says(self, finished: Run) -> None:
        names = {path.name for path in finished.folder.iterdir() if not path.name.startswith(".")}
        files = {"config.toml", "environment.json", "metrics.jsonl", "model.safetensors", "summary.json", "card.md"}
        assert names == files | {"tensorboard", "checkpoints"}
        assert len(list((finished.folder / "checkpoints").iterdir())) == 4  # two pairs

    def test_metrics_have_every_term_and_every_layer(self, finished: Run) -> None:
        assert [row["epoch"] for row in finished.metrics] == [0, 1, 2]
        for row in finished.metrics:
            assert row["loss"] == pytest.approx(row["cross_entropy"] + row["curvature"] + row["gradient"], rel=1e-5)
            assert len(row["beta"]) == 2 and len(row["gamma"]) == 2
            assert 0 <= row["test_accuracy"] <= 1 and row["images_per_second"] > 0
        assert finished.metrics[0]["beta"] != finished.metrics[2]["beta"]

    def test_tensorboard_shows_the_same_numbers(self, finished: Run) -> None:
        events = EventAccumulator(str(finished.folder / "tensorboard")).Reload()
        shown = [event.value for event in events.Scalars("loss")]
        assert shown == pytest.approx([row["loss"] for row in finished.metrics], rel=1e-6)
        assert any(tag.startswith("beta/") for tag in events.Tags()["scalars"])

    def test_the_model_loads_and_repeats_its_accuracy(self, finished: Run) -> None:
        before = torch.random.get_rng_state()
        model = load(finished.folder, factory=small_net)
        assert torch.equal(torch.random.get_rng_state(), before) and not model.training
        test = load_dataset("digits").subset(96, 50).test
        assert accuracy_and_loss(model, test)[0] == finished.summary["accuracy"]
        assert same_bits(dict(model.state_dict()), weights(finished))

    def test_the_environment_and_the_card_tell_what_it_was_made_with(self, finished: Run) -> None:
        made = finished.environment
        assert made["torch"] == torch.__version__ and made["seed"] == 0
        data = load_dataset("digits").subset(96, 50)
        assert made["data"] == {
            "title": "Digits 8×8 (96/50 subset)",
            "train": 96,
            "test": 50,
            "input_size": [1, 8, 8],
            "num_classes": 10,
            "train_samples": digest(data.train.images, data.train.labels),
            "test_samples": digest(data.test.images, data.test.labels),
        }
        card = (finished.folder / "card.md").read_text()
        assert f"{100 * finished.summary['accuracy']:.2f} % of 50" in card and "LCNN + GradReg" in card

    def test_the_recipe_of_a_run_trains_it_again(self, finished: Run, tmp_path: Path) -> None:
        config = load_config(finished)
        again = train(config.model_copy(update={"output": tmp_path}))
        assert same_bits(weights(again), weights(finished))


def test_training_leaves_the_callers_generator_alone(tmp_path: Path) -> None:
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    train(recipe(tmp_path, train__epochs=1))
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize(
    "change",
    [
        {"train__clip_gradient": 1e6},
        {"train__evaluate_every": 2},
        {"train__checkpoint_seconds": 3600},
    ],
    ids=lambda change: next(iter(change)),
)
def test_options_that_do_not_change_the_result(tmp_path: Path, finished: Run, change: dict[str, Any]) -> None:
    run = train(recipe(tmp_path, **change))
    expected = weights(finished)
    assert all(torch.allclose(value, expected[key], atol=1e-4) for key, value in weights(run).items())


def test_channels_last_changes_rounding_only(tmp_path: Path) -> None:
    quiet = {"model": {"from": "tests.training.makers:quiet_net"}, "method": {"name": "lcnn"}}
    plain, other = (
        weights(train(recipe(tmp_path, name=name, train__channels_last=name == "last", **quiet)))
        for name in ("first", "last")
    )
    assert all(torch.allclose(value, other[key], atol=1e-4) for key, value in plain.items())


def test_clipping_bounds_the_step(tmp_path: Path) -> None:
    config = recipe(tmp_path, train__clip_gradient=1e-12, train__weight_decay=0.0, train__epochs=1)
    values = list(train(config).metrics[-1]["beta"].values())
    assert values == pytest.approx([5.0, 5.0], abs=1e-5)


def test_another_seed_gives_another_network(tmp_path: Path, finished: Run) -> None:
    assert not same_bits(weights(train(recipe(tmp_path, train__seed=1))), weights(finished))


def test_bfloat16_trains(tmp_path: Path) -> None:
    run = train(recipe(tmp_path, train__precision="bfloat16", method={"name": "lcnn"}, train__epochs=1))
    assert run.metrics[0]["loss"] < 3


def test_a_meter_weighs_by_the_number_of_samples() -> None:
    meter = Meter(["loss"], torch.device("cpu"))
    for value, count in ((1.0, 3), (5.0, 1)):
        meter.add({"loss": torch.tensor(value)}, count)
    assert meter.means() == {"loss": 2.0}


class TestFineTuning:
    def base(self, folder: Path) -> Run:
        return train(
            recipe(
                folder,
                name="base",
                method={"name": "relu"},
                model={"name": "vgg11", "width": 4},
                data={"name": "digits", "limit_train": 400, "limit_test": 100},
                train={"epochs": 5, "batch_size": 20, "lr": 0.05},
            )
        )

    def test_a_converted_run_starts_from_what_it_knew(self, tmp_path: Path) -> None:
        base = self.base(tmp_path)
        tuned = train(
            recipe(
                tmp_path,
                name="tuned",
                method={"name": "lcnn", "init_beta": 1000.0, "init_gamma": 1e6},
                model={"from": str(base.folder)},
                data={"name": "digits", "limit_train": 400, "limit_test": 100},
                train={"epochs": 1, "lr": 1e-12, "batch_size": 400},
            ),
            factory=base.factory,
        )
        assert base.summary["accuracy"] > 0.5
        assert abs(tuned.summary["accuracy"] - base.summary["accuracy"]) <= 0.05
        kinds = {type(module) for module in load(tuned).modules()}
        assert lc.CenteredSoftplus in kinds and lc.LipschitzBatchNorm2d in kinds

    def test_it_loads_without_its_source_and_can_be_tuned_again(self, tmp_path: Path) -> None:
        base = train(recipe(tmp_path, name="base", method={"name": "csoftplus-only"}))
        second, third = (
            train(
                recipe(tmp_path, name=name, method={"name": "lcnn"}, model={"from": str(tmp_path / source)}),
                factory=small_net,
            )
            for name, source in (("second", "base"), ("third", "second"))
        )
        for run in (base, second):
            run.folder.rename(tmp_path / f"moved-{run.folder.name}")
        assert same_bits(dict(load(third).state_dict()), weights(third))

    def test_it_resumes_without_its_source(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        base = train(recipe(tmp_path, name="base", method={"name": "csoftplus-only"}))
        config = recipe(tmp_path, name="tuned", method={"name": "lcnn"}, model={"from": str(base.folder)})
        with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
            patch.setattr(Meter, "add", lambda *arguments: 1 / 0)
            train(config, factory=small_net)
        base.folder.rename(tmp_path / "moved")
        assert train(config, resume="auto", factory=small_net).finished

    def test_wrong_sources_are_refused(self, tmp_path: Path) -> None:
        cases = {
            "nowhere:factory": "cannot load",
            "nowhere": "package:factory",
            "tests.training.makers:nothing": "cannot load",
            "tests.training.makers:recipe": "missing 1 required positional argument",
        }
        for source, expected in cases.items():
            with pytest.raises(UserError, match=expected):
                train(recipe(tmp_path, model={"from": source}))
        with pytest.raises(UserError, match="cannot take samples"):
            train(recipe(tmp_path, data={"name": "moons"}))


class TestCommand:
    def test_it_trains_a_recipe_with_changes(self, tmp_path: Path) -> None:
        path = tmp_path / "recipe.toml"
        path.write_text('[data]\nname = "moons"\n[model]\nname = "mlp"\nwidth = 8\n[train]\nepochs = 50\n')
        arguments = ["train", str(path), "--set", "train.epochs=1", "--output", str(tmp_path / "runs")]
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.output
        assert "test accuracy" in result.output
        assert Run(tmp_path / "runs" / "moons-mlp-lcnn-s0").finished
        assert isinstance(CliRunner().invoke(app, arguments).exception, UserError)
        assert CliRunner().invoke(app, [*arguments, "--resume", "auto"]).exit_code == 0

    def test_an_unfinished_or_foreign_folder_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="is no run"):
            load(tmp_path)
        (tmp_path / "config.toml").write_text("")
        with pytest.raises(UserError, match="not finished"):
            load(tmp_path)

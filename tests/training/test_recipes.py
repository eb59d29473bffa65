"""Every recipe with a name is valid and says what its name says."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from lowcurve.cli import app
from lowcurve.data import DATASETS
from lowcurve.errors import UserError
from lowcurve.methods import METHODS
from lowcurve.training.config import Config, read_config

TABLES = [("cifar100", "resnet18"), ("cifar100", "vgg11"), ("svhn", "resnet18"), ("svhn", "vgg11")]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("data", "model"), TABLES)
def test_every_row_of_every_table_has_a_recipe_with_the_papers_settings(data: str, model: str, method: str) -> None:
    name = f"{data}-{model}-{method}"
    for spelled in (name, name.replace("+", "-")):
        config = read_config(spelled)
        assert (config.name, config.data.name, config.model.name, config.method.name) == (spelled, data, model, method)
        assert config.data.augmentation == (("crop",) if data == "svhn" else None)
        expected = Config(method={"name": method})
        assert (config.train, config.model.width, config.method) == (expected.train, 64, expected.method)


def test_the_recipe_for_imagenet_is_one_and_says_that_nobody_has_run_it() -> None:
    path = Path(__file__).parents[2] / "examples" / "imagenet-swin-gradreg.toml"
    config = read_config(path)
    assert (config.method.gradient_norm, config.train.optimizer, config.train.epochs) == (1, "adamw", 100)
    assert config.method.lambda_grad == pytest.approx(1.5 * 4 / 255, rel=1e-2)
    assert path.read_text().startswith("# NEVER RUN")


def test_the_released_coefficients_have_names_too() -> None:
    for method in ("lcnn", "lcnn+gradreg"):
        chosen = read_config(f"cifar100-resnet18-{method}-released").method
        assert (chosen.name, chosen.lambda_beta, chosen.lambda_gamma) == (method, 1e-2, 1e-2)


def test_small_ones_take_minutes() -> None:
    digits, certified = read_config("digits-resnet18-lcnn-gradreg"), read_config("digits-convnet-certified")
    assert (digits.model.width, digits.train.epochs, digits.train.batch_size, digits.train.lr) == (8, 20, 64, 0.05)
    assert (certified.model.width, certified.train.epochs, certified.train.clip_gradient) == (16, 30, 1.0)


@pytest.mark.parametrize("method", ["lipschitz", "relu+margin", "maxmin"])
def test_networks_of_slope_one_share_what_was_chosen_for_them_on_held_out_images(method: str) -> None:
    config = read_config(f"cifar10-lipnet-{method}")
    assert config.data.augmentation == ("flip",) and config.model.last_layer == "unit"
    assert (config.method.offset, config.method.temperature) == (0.3, 1.0)


def test_joined_methods_and_overrides() -> None:
    config = read_config("moons-mlp-relu+gradreg", ["train.epochs=3"])
    assert (config.method.name, config.train.epochs) == ("relu+gradreg", 3)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cifar10-resnet18-lcn", "did you mean 'lcnn'"),
        ("cifar10-resnet18-", "unknown method"),
        ("cifar10-resnet99-lcnn", "a name such as"),
        ("nothing", "a name such as"),
        ("recipes/nothing.toml", "a name such as"),
    ],
)
def test_mistaken_names_are_explained(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_config(name)


def test_a_file_goes_before_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("digits-mlp-lcnn").write_text('name = "mine"\n')
    assert read_config("digits-mlp-lcnn").name == "mine"


def test_the_command_trains_by_name(tmp_path: Path) -> None:
    changes = ["train.epochs=1", "data.limit_train=64", "data.limit_test=32", "model.width=4"]
    words = ["train", "digits-mlp-lcnn", "--output", str(tmp_path), *(w for c in changes for w in ("--set", c))]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert (tmp_path / "digits-mlp-lcnn" / "summary.json").is_file()


def test_every_data_set_has_a_recipe_for_fine_tuning() -> None:
    for data in DATASETS:
        config = read_config(f"{data}-fine-tune", ["model.from=package:factory"])
        assert (config.run_name, config.data.name, config.model.source) == (
            f"{data}-fine-tune",
            data,
            "package:factory",
        )

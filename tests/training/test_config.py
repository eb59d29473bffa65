"""Recipes: defaults of the paper, overrides, round trips, and mistakes that are named."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowcurve.data import load_dataset
from lowcurve.errors import UserError
from lowcurve.training.config import Config, dump_config, parse_config, read_config


def refused(tree: object) -> str:
    with pytest.raises(UserError) as caught:
        parse_config(tree)  # type: ignore[arg-type]
    return str(caught.value)


def test_defaults_are_the_papers() -> None:
    config = Config()
    assert (config.train.epochs, config.train.batch_size, config.train.lr) == (200, 128, 0.1)
    assert (config.train.momentum, config.train.weight_decay) == (0.9, 5e-4)
    assert (config.method.lambda_beta, config.method.lambda_gamma, config.method.lambda_grad) == (1e-4, 1e-5, 6.1e-3)
    assert (config.method.init_beta, config.method.init_gamma) == (5.0, 10.0)
    assert (config.method.adversarial_eps, config.method.adversarial_steps) == (0.1, 3)
    assert (config.model.name, config.model.width, config.model.residual) == ("resnet18", 64, "mean")


def test_a_method_brings_its_own_coefficients_and_a_recipe_may_replace_them() -> None:
    assert parse_config({"method": {"name": "minimal"}}).method.lambda_beta == 1e-2
    assert parse_config({"method": {"name": "minimal", "lambda_beta": 3.0}}).method.lambda_beta == 3.0


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        ({"train": {"epoch": 3}}, "unknown key 'train.epoch'; did you mean 'train.epochs'?"),
        ({"metod": {}}, "unknown key 'metod'; did you mean 'method'? Known: data, method, model, name, output, train"),
        ({"train": {"limit_train": 9}}, "did you mean 'data.limit_train'?"),
        ({"method": {"name": "lccn"}}, "did you mean 'lcnn'?"),
        ({"method": {"name": "lcnn+gradrag"}}, "did you mean 'gradreg'?"),
        ({"method": {"name": "relu+lcnn"}}, "one activation per network"),
        ({"data": {"name": "cifar"}}, "did you mean 'cifar10'?"),
        ({"model": {"name": "resnet"}}, "did you mean 'resnet34'?"),
        ({"model": {"residual": "product"}}, "model.residual: Input should be 'mean' or 'sum', got 'product'"),
        ({"train": {"epochs": 0}}, "train.epochs: Input should be greater than or equal to 1, got 0"),
        ({"train": {"epochs": "many"}}, "train.epochs: Input should be a valid integer"),
        ({"train": {"lr": float("nan")}}, "train.lr: Input should be a finite number"),
        ({"train": {"milestones": [0.9, 0.5]}}, "increasing shares between 0 and 1"),
        ({"name": "../elsewhere"}, "name is one folder"),
        ({"method": {"name": "gradreg", "gradient": "finite"}}, "smooth activation"),
        ({"method": {"name": "lcnn+gradreg+cure", "gradient": "finite"}}, "does not go with cure"),
        ({"method": {"name": "gradreg"}, "train": {"precision": "bfloat16"}}, "too coarse"),
        ({"method": {"name": "certified", "gradient": "finite"}}, "does not go with certified"),
        ({"train": 3}, "train: Input should be"),
        ([], "Input should be"),
    ],
)
def test_mistakes_are_named(tree: object, expected: str) -> None:
    assert expected in refused(tree)


def test_all_mistakes_are_told_at_once() -> None:
    message = refused({"train": {"epochs": 0, "lr": -1}, "model": {"width": 0}})
    assert "3 mistake(s)" in message and message.count(";") == 2


def test_overrides_replace_values_of_the_recipe(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text('[train]\nepochs = 5\n[data]\nname = "moons"\n')
    config = read_config(path, ["train.epochs=7", "method.name=lcnn+gradreg", "data.limit_train=100", 'name="a b"'])
    assert (config.train.epochs, config.method.name, config.data.limit_train) == (7, "lcnn+gradreg", 100)
    assert (config.name, config.data.name) == ("a b", "moons")
    for wrong, expected in (("train.epochs", "expected key=value"), ("data.name.x=3", "not a section")):
        with pytest.raises(UserError, match=expected):
            read_config(path, [wrong])


def test_unreadable_recipes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read the recipe"):
        read_config(tmp_path / "missing.toml")
    with pytest.raises(UserError, match="cannot read the recipe"):
        read_config(tmp_path)
    (tmp_path / "bad.toml").write_bytes(b"\xff\xfe = 3")
    with pytest.raises(UserError, match="is no TOML"):
        read_config(tmp_path / "bad.toml")


@settings(max_examples=100, deadline=None)
@given(
    output=st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=20),
    source=st.none() | st.text(st.characters(codec="utf-8"), max_size=20),
    lr=st.floats(1e-30, 1e30),
    milestones=st.lists(st.floats(0.01, 0.99), unique=True, max_size=3).map(sorted),
    limit=st.none() | st.integers(2, 10**9),
    flag=st.booleans(),
)
def test_a_written_recipe_reads_back_equal(
    tmp_path_factory: pytest.TempPathFactory,
    output: str,
    source: str | None,
    lr: float,
    milestones: list[float],
    limit: int | None,
    flag: bool,
) -> None:
    config = parse_config(
        {
            "output": output,
            "data": {"limit_train": limit},
            "model": {"from": source},
            "train": {"lr": lr, "milestones": milestones, "channels_last": flag},
        }
    )
    path = tmp_path_factory.mktemp("recipe") / "config.toml"
    path.write_text(dump_config(config), "utf-8")
    assert read_config(path) == config


def test_runs_are_named_by_data_model_method_and_seed() -> None:
    config = parse_config({"data": {"name": "folder:/a/b"}, "method": {"name": "relu"}, "train": {"seed": 3}})
    assert config.folder == Path("runs/folder--a-b-resnet18-relu-s3")
    assert parse_config({"name": "mine", "output": "x"}).folder == Path("x/mine")


def test_the_last_layer_is_the_methods_choice_and_a_recipe_may_make_another(tmp_path: Path) -> None:
    assert parse_config({"method": {"name": "lcnn"}}).model.last_layer == "free"
    assert parse_config({"method": {"name": "certified"}}).model.last_layer == "unit"
    assert parse_config({"method": {"name": "standard"}}).model.last_layer is None
    assert parse_config({"method": {"name": "lcnn"}, "model": {"last_layer": "unit"}}).model.last_layer == "unit"
    with pytest.raises(UserError, match="needs spectral norms"):
        parse_config({"method": {"name": "standard"}, "model": {"last_layer": "unit"}})


def test_a_run_of_before_there_was_a_choice_has_a_last_layer_of_unit_norm(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[method]\nname = "lcnn"\n')
    (tmp_path / "recipe.toml").write_text('[method]\nname = "lcnn"\n')
    assert read_config(tmp_path / "config.toml").model.last_layer == "unit"
    assert read_config(tmp_path / "recipe.toml").model.last_layer == "free"


def test_held_out_samples_are_taken_from_the_training_set() -> None:
    dataset = load_dataset("digits")
    chosen = parse_config({"data": {"validation": 0.1}}).data.parts(dataset)
    assert len(chosen.test) == 144 and len(chosen.train) == len(dataset.train) - 144
    rows = {tuple(image.flatten().tolist()) for image in chosen.test.images}
    assert rows <= {tuple(image.flatten().tolist()) for image in dataset.train.images}
    assert "validation" in chosen.title

"""Every recipe is valid, says what its name says."""

from pathlib import Path

import pytest

from lowcurve.methods import METHODS
from lowcurve.training.config import read_config

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.toml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_is_valid_and_named_after_its_contents(path: Path) -> None:
    config = read_config(path)
    assert config.name == path.stem
    assert path.stem.startswith(f"{config.data.name}-{config.model.name}")
    assert path.read_text().startswith("# ")


def test_every_row_of_every_table_has_a_recipe() -> None:
    rows = {(config.data.name, config.model.name, config.method.name) for config in map(read_config, RECIPES)}
    paper = {method for method in METHODS if method != "certified"}
    assert {("cifar100", "resnet18", method) for method in paper} <= rows
    for table in (("svhn", "vgg11"), ("svhn", "resnet18"), ("cifar100", "vgg11")):
        assert {(*table, method) for method in ("standard", "lcnn", "gradreg", "lcnn+gradreg", "adv")} <= rows


def test_table_recipes_are_the_papers_settings() -> None:
    for path in RECIPES:
        config = read_config(path)
        if config.data.name in ("cifar100", "svhn"):
            assert (config.train.epochs, config.train.batch_size, config.model.width) == (200, 128, 64)
    pairs = {
        (config.method.lambda_beta, config.method.lambda_gamma)
        for config in map(read_config, RECIPES)
        if config.method.name == "lcnn"
    }
    assert pairs == {(1e-4, 1e-5), (1e-2, 1e-2)}

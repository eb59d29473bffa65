"""Runs are found by what changes their weights, and by nothing else."""

from pathlib import Path

import pytest

from lowcurve.experiments import EXPERIMENTS
from lowcurve.experiments.grid import fingerprint, planned_runs
from lowcurve.experiments.presets import PRESETS
from lowcurve.methods import METHODS
from lowcurve.training.config import Config, parse_config


def grid(name, preset="digits", **options):
    return planned_runs(EXPERIMENTS[name], PRESETS[preset], Path("runs"), **options)


def test_tables_share_their_runs():
    geometry = {planned.name for planned in grid("table-geometry")}
    assert {planned.name for planned in grid("table-discrepancy")} <= geometry
    assert {planned.name for planned in grid("table-attacks")} <= geometry
    ablations = {planned.name for planned in grid("table-ablations")}
    assert len(ablations & geometry) == 6  # standard, lcnn and lcnn with a last layer of unit norm, two seeds each


def test_every_run_of_an_experiment_is_a_run_of_its_own():
    for name in EXPERIMENTS:
        names = [planned.name for planned in grid(name)]
        assert len(names) == len(set(names))


@pytest.mark.parametrize(
    "change",
    [
        {"output": "elsewhere"},
        {"name": "other"},
        {"data": {"name": "digits", "dir": "/somewhere"}},
        {"train": {"device": "cpu"}},
        {"train": {"evaluate_every": 7}},
        {"train": {"epochs": 200}},  # the default, spelt out
        {"method": {"gradient_norm": 2}},
    ],
    ids=str,
)
def test_places_and_defaults_do_not_change_the_hash(change):
    assert fingerprint(parse_config(change)) == fingerprint(Config())


@pytest.mark.parametrize(
    "change",
    [
        {"train": {"seed": 1}},
        {"train": {"epochs": 3}},
        {"model": {"width": 8}},
        {"method": {"name": "relu"}},
        {"method": {"lambda_beta": 0.5}},
        {"method": {"gradient_norm": 1}},
        {"data": {"name": "digits", "limit_train": 100}},
    ],
    ids=str,
)
def test_what_changes_the_weights_changes_the_hash(change):
    assert fingerprint(parse_config(change)) != fingerprint(Config())


def test_a_method_keeps_its_own_coefficient():
    preset = PRESETS["cpu"]
    (minimal,) = grid("table-geometry", "cpu", rows=["minimal"], seeds=[0])
    assert minimal.config.method.lambda_beta == METHODS["minimal"].coefficients["lambda_beta"]
    (lcnn,) = grid("table-geometry", "cpu", rows=["lcnn"], seeds=[0])
    expected = preset.coefficients.get("curvature", {}).get("lambda_beta", 1e-4)
    assert lcnn.config.method.lambda_beta == expected


def test_swaps_options_and_overrides():
    assert {planned.config.data.name for planned in grid("table-geometry", "cpu")} == {"cifar10"}
    assert {planned.config.data.name for planned in grid("table-geometry", "cpu", data="cifar100")} == {"cifar100"}
    assert {planned.config.data.name for planned in grid("table-geometry", "paper")} == {"cifar100"}
    assert {planned.config.model.name for planned in grid("table-geometry-svhn-vgg11")} == {"vgg11"}
    (planned,) = grid("table-ablations", rows=["lcnn-no-penalty"], seeds=[5], overrides={"train.epochs": 1})
    assert (planned.seed, planned.config.train.seed, planned.config.train.epochs) == (5, 5, 1)
    assert (planned.config.method.lambda_beta, planned.config.method.lambda_gamma) == (0.0, 0.0)


def test_the_papers_preset_is_the_papers_recipe():
    for planned in grid("table-geometry", "paper"):
        train = planned.config.train
        assert (train.epochs, train.batch_size, train.lr, train.weight_decay) == (200, 128, 0.1, 5e-4)
        assert planned.config.model.width == 64
        assert planned.config.data.limit_train is None


def test_a_preset_adjusts_data_and_settings_but_not_what_a_method_is():
    first = {planned.row.key: planned.config.method for planned in grid("table-geometry", "cpu", seeds=(0,))}
    assert (first["lcnn"].lambda_beta, first["lcnn"].lambda_gamma) == (3e-4, 1e-3)
    assert first["minimal"].lambda_beta == 1e-2
    svhn = {name: grid(f"table-geometry-svhn-{name}", "cpu")[0].config.train for name in ("vgg11", "resnet18")}
    assert (svhn["vgg11"].epochs, svhn["vgg11"].lr, svhn["vgg11"].clip_gradient) == (5, 0.02, 1.0)
    assert (svhn["resnet18"].epochs, svhn["resnet18"].lr, svhn["resnet18"].clip_gradient) == (5, 0.02, None)


def test_the_long_preset_finds_the_runs_that_were_trained_for_it():
    """Days of training carry these names: a change of the hash or of the preset would lose them."""
    names = {planned.row.key: planned.name for planned in grid("table-geometry", "long", seeds=(0,))}
    assert names["standard"] == "cifar100-resnet18-standard-s0-8a55db2b"
    assert names["adv"] == "cifar100-resnet18-adv-s0-fec35d1c"

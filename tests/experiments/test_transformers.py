"""The study of transformers: what it measures on a small network, and what its rows train."""

from pathlib import Path

import pytest
import torch
from torch import nn

import lowcurve as lc
from lowcurve.data import load_dataset
from lowcurve.evaluation.measurement import PER_SAMPLE, read_written
from lowcurve.evaluation.subject import Subject
from lowcurve.experiments.grid import planned_runs
from lowcurve.experiments.presets import PRESETS
from lowcurve.experiments.transformers import TABLE, measure_attacks, measure_blocks


@pytest.fixture(scope="module")
def subject() -> Subject:
    torch.manual_seed(0)
    net = lc.MODELS["vit"](in_channels=1, width=8, activation=nn.GELU, image_size=8).eval()
    return Subject(net, load_dataset("digits"), "small", None)


def test_attacks_of_both_norms_say_which_samples_are_left(subject: Subject) -> None:
    settings = {"samples": 10, "pgd_steps": 2, "apgd_steps": 2, "l2": 0.2, "linf": 2 / 255}
    found = measure_attacks(subject, settings)
    names = {"attacked_accuracy", "pgd_l2", "pgd_linf", "apgd_t_l2", "apgd_t_linf"}
    assert found.keys() - {"flags", PER_SAMPLE} == names == found[PER_SAMPLE].keys()
    for name in names:
        assert found[name] == pytest.approx(read_written(found[PER_SAMPLE][name]).mean())
        assert found[name] <= found["attacked_accuracy"]


def test_blocks_are_those_of_the_network(subject: Subject) -> None:
    found = measure_blocks(subject, {"samples": 1, "tol": 0.3})
    assert {len(values) for name, values in found.items() if name.endswith("by_block")} == {4}
    assert found["attention_lipschitz"] == max(found["attention_lipschitz_by_block"]) > 0


def test_rows_differ_in_the_method_and_in_little_else() -> None:
    runs = {planned.row.key: planned.config for planned in planned_runs(TABLE, PRESETS["cpu"], Path("runs"))}
    assert {(config.data.name, config.model.name, config.model.width) for config in runs.values()} == {
        ("cifar10", "vit", 64)
    }
    assert len({config.train for config in runs.values()}) == 1
    norms = {key: config.method.gradient_norm for key, config in runs.items() if "gradreg" in config.method.name}
    assert norms == {"l2": 2, "l1": 1, "relu-l1": 1, "learned-l1": 1}
    assert {key for key, config in runs.items() if config.method.gradient == "finite"} == {"l2", "l1", "learned-l1"}

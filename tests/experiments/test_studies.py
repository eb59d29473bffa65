"""Are studies told the truth: which labels are wrong, how many are learned, and how sure the means are?"""

import math
from pathlib import Path

import pytest
import scipy.stats
import torch
from torch import Tensor, nn

from lowcurve.data import Dataset, Split, load_dataset
from lowcurve.errors import UserError
from lowcurve.evaluation.subject import Subject
from lowcurve.experiments import EXPERIMENTS, label_noise, small_data
from lowcurve.experiments.experiment import Column
from lowcurve.experiments.intervals import interval, level_figures
from lowcurve.experiments.presets import PRESETS
from lowcurve.experiments.request import request, request_all
from lowcurve.training.config import dump_config, parse_config


def numbered(count: int) -> Dataset:
    """Images that are their own number, so that a network can know each of them."""
    images = torch.arange(count, dtype=torch.float32)[:, None] / count
    labels = torch.arange(count) % 5
    return Dataset("numbered", "Numbered", Split(images, labels), Split(images, labels), tuple("abcde"))


@pytest.mark.parametrize("share", [0.2, 0.5, 0.99])
def test_as_many_labels_are_wrong_as_was_asked_for(share: float) -> None:
    clean = numbered(1000)
    noisy = clean.mislabeled(share, seed=3)
    wrong = noisy.train.labels != clean.train.labels
    assert int(wrong.sum()) == round(1000 * share)
    assert noisy.train.labels.unique().tolist() == [0, 1, 2, 3, 4]
    assert noisy.test is clean.test and noisy.train.images is clean.train.images
    assert torch.equal(clean.mislabeled(share, seed=3).train.labels, noisy.train.labels)
    assert not torch.equal(clean.mislabeled(share, seed=4).train.labels, noisy.train.labels)
    shift = (noisy.train.labels - clean.train.labels)[wrong] % 5  # every other class alike
    assert scipy.stats.chisquare(torch.bincount(shift, minlength=5)[1:]).pvalue > 1e-3
    assert clean.mislabeled(0.0, seed=3) is clean


class Known(nn.Module):
    """A network that has learned a label for each numbered image."""

    def __init__(self, labels: Tensor) -> None:
        super().__init__()
        self.labels = labels

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.one_hot(self.labels[(x[:, 0] * len(self.labels)).round().long()], 5).float()


def test_what_is_learned_by_heart_is_counted(tmp_path: Path) -> None:
    tree = {"output": str(tmp_path), "name": "run", "data": {"wrong_labels": 0.3}, "train": {"seed": 7}}
    (tmp_path / "config.toml").write_text(dump_config(parse_config(tree)))
    clean = numbered(200)
    given = clean.mislabeled(0.3, seed=7).train.labels

    def measured(labels: Tensor) -> dict[str, float]:
        return label_noise.measure(Subject(Known(labels), clean, "run", tmp_path), {"batch": 64})

    by_heart, wise = measured(given), measured(clean.train.labels)
    assert by_heart == {"fit": 1.0, "learned_right": 1.0, "memorized": 1.0, "corrected": 0.0}
    assert wise == pytest.approx({"fit": 0.7, "learned_right": 1.0, "memorized": 0.0, "corrected": 1.0})
    half = torch.where(torch.arange(200) < 100, given, clean.train.labels)
    share = (given != clean.train.labels)[:100].sum().item() / 60
    assert measured(half)["memorized"] == pytest.approx(share)


@pytest.mark.parametrize("count", [2, 3, 5, 11, 12, 30])
def test_intervals_are_those_of_student(count: int) -> None:
    values = torch.randn(count, generator=torch.Generator().manual_seed(count)).double().tolist()
    mean, low, high = interval(values)
    error = scipy.stats.sem(values)
    truth = scipy.stats.t.interval(0.95, count - 1, loc=mean, scale=error)
    assert (low, high) == pytest.approx(truth, abs=3e-3 * error)


def test_differences_are_taken_seed_by_seed() -> None:
    rows = {("a", 1.0): "a-1", ("b", 1.0): "b-1", ("a", 2.0): "a-2", ("b", 2.0): "b-2"}
    measured = {
        "a-1": {0: {"accuracy": 0.5}, 1: {"accuracy": 0.7}},
        "b-1": {0: {"accuracy": 0.6}, 1: {"accuracy": 0.8}, 2: {"accuracy": 0.1}},
        "a-2": {0: {"accuracy": 0.9}},
    }
    level, apart = level_figures(measured, rows, {"a": "A", "b": "B"}, "x", [Column("accuracy", "Acc.", scale=100.0)])
    assert [line["x"] for line in level["lines"]] == [[1.0, 2.0], [1.0]]
    assert level["lines"][1]["y"] == [pytest.approx(50.0)]
    (line,) = apart["lines"]
    assert (line["label"], line["x"]) == ("B − a", [1.0])
    for end in ("y", "low", "high"):  # both seeds gain ten points: nothing is unsure
        assert line[end] == [pytest.approx(10.0)]


def test_a_share_of_the_samples() -> None:
    config = parse_config({"data": {"name": "digits", "limit_train": 0.1}})
    assert len(config.data.load().train) == round(0.1 * len(load_dataset("digits").train))
    assert parse_config({"data": {"limit_train": 100.0}}).data.limit_train == 100
    for limit in (0, 1, 1.5, -2, math.nan, math.inf, True, "few"):
        with pytest.raises(UserError, match="a whole number of samples from 2 on, or a share"):
            parse_config({"data": {"limit_train": limit}})


def test_studies_stand_apart_and_their_runs_differ() -> None:
    names = {asked.experiment.name for asked in request_all("digits")}
    for study in (label_noise.TABLE, small_data.TABLE):
        assert EXPERIMENTS[study.name] is study and study.name not in names
        for preset in PRESETS:
            runs = request(study.name, preset).grid()
            assert len({planned.name for planned in runs}) == len(runs) == 12 * 3

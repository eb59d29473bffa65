"""Epochs are timed once kernels have started, and each row with its own settings."""

from dataclasses import replace

import pytest

from lowcurve.experiments import epoch_times
from lowcurve.experiments.request import Request
from lowcurve.training import loop
from tests.experiments.test_reproduce import TINY


@pytest.fixture
def trained(monkeypatch, tmp_path):
    """How gradients were taken and the last epoch went while two rows were timed, and what came out of it."""
    runs, train = [], loop.train

    def watched(config):
        run = train(config)
        runs.append((config.method.gradient, run.metrics[-1]))
        return run

    monkeypatch.setattr(loop, "train", watched)
    rows = tuple(row for row in epoch_times.TABLE.rows if row.method == "lcnn+gradreg")
    table = replace(epoch_times.TABLE, data="digits", model="mlp", rows=rows)
    asked = Request(table, replace(TINY, epoch_images=32), tmp_path / "runs", tmp_path / "results")
    return runs, epoch_times.time_epochs(asked.grid(), asked.preset)[1]


def test_the_second_epoch_counts(trained):
    runs, found = trained
    assert len(runs) == epoch_times.TURNS * len(found) == 10
    for row, gradient in (("lcnn+gradreg", "double"), ("lcnn+gradreg-finite", "finite")):
        speeds = [metrics for taken, metrics in runs if taken == gradient]
        assert [metrics["epoch"] for metrics in speeds] == [1] * epoch_times.TURNS
        mean = sum(metrics["images_per_second"] for metrics in speeds) / len(speeds)
        assert found[row][0]["turn_speed"] == pytest.approx(mean)

"""Intervals over samples and seeds are those that other ways of computing them give."""

import numpy
import pytest
import scipy.stats
import torch
from torch import nn

from lowcurve.data import load_dataset
from lowcurve.evaluation.measurement import PER_SAMPLE, Budget, read_written, written
from lowcurve.evaluation.subject import Subject
from lowcurve.experiments import attacks, autoattack, discrepancy, geometry, gradient_robustness, saliency
from lowcurve.experiments.claims import Claim, middle
from lowcurve.experiments.discrepancy import gaps
from lowcurve.experiments.experiment import Column
from lowcurve.experiments.redraw import DRAWS, redraw

FEW = Budget(geometry=12, stability=6, pgd=20, pgd_steps=3, strong=12, apgd_steps=3, square_queries=10)
COLUMNS = (Column("c", "c"), Column("c_median", "c"), Column("gap_curvature", "c"))


def run(values, name="geometry", key="c"):
    """One run that measured `values` of its samples."""
    values = torch.as_tensor(values)
    known = {key: float(values.nanmean()), f"{key}_median": float(values.nanmedian())}
    return known | {PER_SAMPLE: {key: (name, written(values))}}


def draws(measured, derive=lambda values: {}):
    found = redraw(measured, COLUMNS, derive)
    return {cell: drawn for cell in found.runs if (drawn := found.mean(cell)) is not None}


@pytest.mark.parametrize("count", [30, 400])
@pytest.mark.parametrize(("column", "statistic"), [("c", numpy.mean), ("c_median", numpy.median)])
def test_an_interval_over_samples_is_that_of_scipy(count, column, statistic):
    values = numpy.random.default_rng(count).gamma(2.0, size=count)
    found = middle(draws({"a": {0: run(values)}})["a", column])
    other = scipy.stats.bootstrap(
        (values,), statistic, method="percentile", n_resamples=4000, rng=1
    ).confidence_interval
    width = other.high - other.low
    assert found == pytest.approx((other.low, other.high), abs=0.12 * width)


def test_nineteen_of_twenty_intervals_hold_the_truth():
    rng = numpy.random.default_rng(0)
    found = draws({f"row{place}": {0: run(rng.normal(5.0, 2.0, 60))} for place in range(150)})
    ends = [middle(found[f"row{place}", "c"]) for place in range(150)]
    assert 0.88 < numpy.mean([low <= 5.0 <= high for low, high in ends]) < 0.99


def test_models_are_compared_on_the_same_samples():
    values = torch.rand(50)
    found = draws({"a": {0: run(values)}, "b": {0: run(values + 1)}, "other": {0: run(values + 1, "elsewhere")}})
    apart = Claim("", "c[b] − c[a] >= 1").values(found)
    assert apart.min() == pytest.approx(1.0, abs=1e-4) and apart.max() == pytest.approx(1.0, abs=1e-4)
    assert Claim("", "c[other] − c[a] >= 1").values(found).std() > 0.02


def test_seeds_without_samples_give_the_range_of_their_values():
    measured = {"a": {0: {"c": 1.0}, 1: {"c": 3.0}}, "b": {0: {"c": 2.0}, 1: {"c": 5.0}}}
    found = draws(measured)
    assert middle(found["a", "c"]) == (1.0, 3.0)
    assert middle(Claim("", "c[b] − c[a] >= 1").values(found)) == (1.0, 2.0)  # seed by seed


def test_one_seed_without_samples_has_no_interval():
    assert draws({"a": {0: {"c": 1.0}}}) == {}
    assert Claim("", "c[a] <= 2").values({}) is None
    assert draws({}) == {}


def test_a_seed_that_a_row_lacks_is_left_out():
    found = draws({"a": {0: {"c": 1.0}, 1: {"c": 1.5}, 2: {"c": 2.0}}, "b": {1: run([4.0, 4.0])}})
    assert numpy.allclose(found["b", "c"], 4.0) and len(found["b", "c"]) == DRAWS
    assert middle(found["a", "c"]) == (1.0, 2.0)


def test_a_mean_over_some_of_the_seeds():
    found = redraw({"a": {0: {"c": 1.0}, 1: {"c": 1.5}, 2: {"c": 2.0}}}, COLUMNS, lambda values: {})
    assert middle(found.mean(("a", "c"), [1, 2])) == (1.5, 2.0)
    assert found.mean(("a", "c"), [1]) is found.mean(("a", "c"), []) is found.mean(("b", "c")) is None


def test_samples_that_are_not_finite_are_left_out():
    found = draws({"a": {0: run([1.0, float("nan"), 3.0, 2.0] * 20)}})
    assert middle(found["a", "c"])[0] == pytest.approx(2.0, abs=0.3)
    assert numpy.isfinite(found["a", "c_median"]).all()


def test_what_follows_from_two_measurements_varies_with_both():
    test, train = run([1.0, 5.0] * 30, key="curvature"), run([1.0, 3.0] * 30, "train", key="train_curvature")
    values = {**test, **train, PER_SAMPLE: {**test[PER_SAMPLE], **train[PER_SAMPLE]}}
    low, high = middle(draws({"a": {0: values | gaps(values)}}, gaps)["a", "gap_curvature"])
    assert low < 0.5 < high  # 3 against 2


@pytest.mark.parametrize(
    "measurement",
    [
        geometry.GEOMETRY,
        discrepancy.GEOMETRY_TRAIN,
        attacks.PGD,
        autoattack.AUTOATTACK,
        gradient_robustness.STABILITY,
        saliency.SALIENCY,
    ],
    ids=lambda measurement: measurement.name,
)
def test_what_is_kept_of_samples_has_the_mean_that_is_reported(measurement):
    torch.manual_seed(0)
    dataset = load_dataset("digits").subset(40, 30)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Softplus(10), nn.Linear(8, 10)).eval()
    values = measurement.measure(Subject(model, dataset, "net", None), measurement.settings(FEW))
    kept = values[PER_SAMPLE]
    assert kept
    for name, text in kept.items():
        samples = read_written(text)
        assert numpy.nanmean(samples) == pytest.approx(values[name], rel=1e-4)
        if f"{name}_median" in values:
            assert numpy.nanmedian(samples) == pytest.approx(values[f"{name}_median"], rel=1e-4)
    if measurement is autoattack.AUTOATTACK:
        _check_the_suite(model, dataset, values)


def _check_the_suite(model, dataset, values):
    """Attacks that are tried on survivors alone find what all of them find on all samples."""
    from lowcurve.attacks import SUITE
    from lowcurve.attacks.evaluate import evaluate

    steps = {name: FEW.square_queries if name == "square" else FEW.apgd_steps for name in SUITE}
    whole = evaluate(model, dataset.test.subset(FEW.strong, 0), SUITE, (autoattack.RADIUS,), steps=steps, seed=0)
    assert values["suite"] == whole.accuracy("worst", autoattack.RADIUS) <= min(values["apgd_t"], values["square"])

"""The paper's numbers, checked against sentences of the paper that restate them."""

import pytest

from lowcurve.experiments import EXPERIMENTS

PAPER = {name: experiment.paper for name, experiment in EXPERIMENTS.items()}
GEOMETRY, ATTACKS, ABLATIONS = (PAPER[f"table-{name}"] for name in ("geometry", "attacks", "ablations"))


def test_the_same_models_have_the_same_numbers_in_both_tables():
    for column in ("gradient_norm", "hessian_norm", "curvature", "accuracy"):
        assert ABLATIONS["standard"][column][0] == GEOMETRY["standard"][column][0]
    assert GEOMETRY["cure"]["accuracy"] == ATTACKS["cure"]["accuracy"]


@pytest.mark.parametrize(
    ("row", "over", "factor"),
    [("lcnn", "standard", 1.6), ("lcnn+gradreg", "gradreg", 1.3), ("adv", "lcnn+gradreg", 1.4)],
)
def test_epoch_times_give_the_factors_of_the_text(row, over, factor):
    times = PAPER["table-epoch-times"]
    assert times[row]["epoch_seconds"][0] / times[over]["epoch_seconds"][0] == pytest.approx(factor, abs=0.05)


def test_the_text_says_which_rows_are_best():
    lowest = min(GEOMETRY, key=lambda row: GEOMETRY[row]["curvature"][0])
    assert lowest == "lcnn+gradreg"
    most_robust = max(ATTACKS, key=lambda row: ATTACKS[row]["pgd_0.2"][0])
    assert most_robust == "adv"
    assert (
        min(PAPER["table-discrepancy"], key=lambda row: PAPER["table-discrepancy"][row]["gap_curvature"][0])
        == "gradreg"
    )


def test_curvature_is_near_the_ratio_of_its_parts():
    """E[H/g] and E[H]/E[g] differ, but not by orders of magnitude: a slip of the decimal point would show."""
    for table in (GEOMETRY, PAPER["table-geometry-svhn-vgg11"], PAPER["table-geometry-svhn-resnet18"], ABLATIONS):
        for row in table.values():
            ratio = row["hessian_norm"][0] / row["gradient_norm"][0]
            assert 0.3 < row["curvature"][0] / ratio < 3

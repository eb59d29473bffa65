"""The paper's numbers, checked against sentences of the paper that restate them."""

import pytest

from lowcurve.experiments import paper


def test_the_same_models_have_the_same_numbers_in_both_tables():
    for column in ("gradient_norm", "hessian_norm", "curvature", "accuracy"):
        assert paper.ABLATIONS["standard"][column][0] == paper.GEOMETRY["standard"][column][0]
    assert paper.GEOMETRY["cure"]["accuracy"] == paper.ATTACKS["cure"]["accuracy"]


@pytest.mark.parametrize(
    ("row", "over", "factor"),
    [("lcnn", "standard", 1.6), ("lcnn+gradreg", "gradreg", 1.3), ("adv", "lcnn+gradreg", 1.4)],
)
def test_epoch_times_give_the_factors_of_the_text(row, over, factor):
    times = paper.EPOCH_SECONDS
    assert times[row]["epoch_seconds"][0] / times[over]["epoch_seconds"][0] == pytest.approx(factor, abs=0.05)


def test_the_text_says_which_rows_are_best():
    lowest = min(paper.GEOMETRY, key=lambda row: paper.GEOMETRY[row]["curvature"][0])
    assert lowest == "lcnn+gradreg"
    most_robust = max(paper.ATTACKS, key=lambda row: paper.ATTACKS[row]["pgd_0.2"][0])
    assert most_robust == "adv"
    assert min(paper.DISCREPANCY, key=lambda row: paper.DISCREPANCY[row]["gap_curvature"][0]) == "gradreg"


def test_curvature_is_near_the_ratio_of_its_parts():
    """E[H/g] and E[H]/E[g] differ, but not by orders of magnitude: a slip of the decimal point would show."""
    for table in (paper.GEOMETRY, paper.GEOMETRY_SVHN_VGG11, paper.GEOMETRY_SVHN_RESNET18, paper.ABLATIONS):
        for row in table.values():
            ratio = row["hessian_norm"][0] / row["gradient_norm"][0]
            assert 0.3 < row["curvature"][0] / ratio < 3

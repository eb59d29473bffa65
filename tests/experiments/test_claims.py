"""Claims are judged as they say, and each refers to cells that its table has."""

import numpy
import pytest

from lowcurve.errors import UserError
from lowcurve.experiments import EXPERIMENTS
from lowcurve.experiments.claims import Claim, verdicts
from lowcurve.experiments.results import tabulate

CLAIMS = [(experiment, claim) for experiment in EXPERIMENTS.values() for claim in experiment.claims]


@pytest.mark.parametrize(("experiment", "claim"), CLAIMS, ids=lambda item: getattr(item, "name", None) or item.text)
def test_a_claim_refers_to_rows_and_columns_of_its_table(experiment, claim):
    rows = {row.key for row in experiment.rows}
    columns = {column.key for column in experiment.columns}
    for row, column in claim.cells:
        assert row in rows
        assert column in columns


@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=lambda experiment: experiment.name)
def test_the_papers_numbers_belong_to_rows_and_columns(experiment):
    rows = {row.key for row in experiment.rows if not row.ours}
    columns = {column.key for column in experiment.columns}
    for row, cells in experiment.paper.items():
        assert row in rows
        assert set(cells) <= columns


def _paper_verdicts(name):
    return {v["formula"]: v["paper_verdict"] for v in tabulate(EXPERIMENTS[name], {}, {})["verdicts"]}


def test_verdicts_on_the_papers_own_numbers_worked_by_hand():
    geometry = _paper_verdicts("table-geometry")
    assert geometry["curvature[lcnn] / curvature[standard] <= 0.5"] == "holds"  # 69.50 / 270.89 = 0.257
    assert geometry["curvature[lcnn] / curvature[standard] <= 0.166667"] == "does not hold"
    assert geometry["curvature[lcnn+gradreg] / curvature[standard] <= 0.125"] == "holds"  # 25.30 / 270.89
    gaps = _paper_verdicts("table-discrepancy")
    assert gaps["gap_curvature[standard] / gap_hessian_norm[standard] <= 0.01"] == "holds"  # 0.025 / 12.28
    assert gaps["gap_curvature[lcnn] / gap_hessian_norm[lcnn] <= 0.01"] == "does not hold"  # 0.129 / 11.33
    vgg = _paper_verdicts("table-geometry-svhn-vgg11")
    assert vgg["curvature[lcnn] / curvature[standard] <= 0.5"] == "does not hold"  # 30.05 / 54.24 = 0.554


def test_quantities():
    cells = {("a", "c"): 6.0, ("b", "c"): 4.0, ("zero", "c"): 0.0}
    assert Claim("", "c[a] / c[b] <= 1").value(cells.get) == 1.5
    assert Claim("", "c[a] − c[b] >= 1").value(cells.get) == 2.0
    assert Claim("", "c[a] - c[b] >= 1e-3").value(cells.get) == 2.0
    assert Claim("", "c[a] >= 1").value(cells.get) == 6.0
    assert Claim("", "c[a] / c[zero] <= 1").value(cells.get) is None
    assert Claim("", "c[a] / c[absent] <= 1").value(cells.get) is None


@pytest.mark.parametrize(
    "formula", ["", "c[a]", "c[a] = 1", "c[a] <= b", "c[a] + c[b] <= 1", "c[a]/c[b] <= 1", "c[a] <= 1e", "c <= nan"]
)
def test_what_is_no_formula_is_refused(formula):
    with pytest.raises(UserError, match="expected a claim"):
        Claim("", formula)


def test_a_threshold_is_included_and_nothing_is_no_verdict():
    claim = Claim("", "c[a] / c[b] <= 0.5")
    assert [claim.judge(value) for value in (0.5, 0.51, None, float("nan"))] == [
        "holds",
        "does not hold",
        "not measured",
        "not measured",
    ]


def judge(claim, ours, draws=None):
    """Judge a claim on numbers by cell and seed, with draws by cell, whatever the seeds."""
    (found,) = verdicts([claim], ours, {}.get, lambda cell, seeds: (draws or {}).get(cell))
    return found


def test_seeds_that_disagree_are_counted():
    claim = Claim("", "c[a] / c[b] <= 1")
    ours = {("a", "c"): {0: 1.0, 1: 3.0}, ("b", "c"): {0: 2.0, 1: 2.0}}
    draws = {("a", "c"): numpy.array([1.0, 2.0, 3.0]), ("b", "c"): numpy.array([2.0, 2.0, 2.0])}
    found = judge(claim, ours, draws)
    assert found["verdict"] == "cannot tell"
    assert found["seeds"] == {"0": 0.5, "1": 1.5}
    assert found["seeds_that_agree"] == 1


def test_rows_are_compared_on_the_seeds_that_both_have():
    ours = {("a", "c"): {0: 6.0}, ("b", "c"): {0: 2.0, 1: 100.0}}
    asked = []
    (found,) = verdicts([Claim("", "c[a] / c[b] <= 1")], ours, {}.get, lambda *cell: asked.append(cell))
    assert found["ours"] == 3.0 and found["seeds"] == {"0": 3.0}
    assert asked == [(("a", "c"), [0]), (("b", "c"), [0])]
    apart = judge(Claim("", "c[a] / c[b] <= 1"), {("a", "c"): {0: 6.0}, ("b", "c"): {1: 2.0, 2: 4.0}})
    assert apart["ours"] == 2.0 and apart["seeds"] == {}  # none in common: all of each


@pytest.mark.parametrize(
    ("measured", "draws", "verdict"),
    [
        (0.15, [0.1, 0.2], "holds"),
        (0.65, [0.6, 0.7], "does not hold"),
        (0.15, [0.6, 0.7], "cannot tell"),  # the interval holds what was measured
        (0.15, [0.4, 0.6], "cannot tell"),
        (0.15, [0.1, numpy.inf], "cannot tell"),  # a draw without a value: nobody knows how far it goes
        (0.15, None, "cannot tell"),
    ],
)
def test_a_verdict_is_that_of_the_whole_interval(measured, draws, verdict):
    claim = Claim("", "c[a] <= 0.5")
    cell = ("a", "c")
    known = {} if draws is None else {cell: numpy.array(draws)}
    assert judge(claim, {cell: {0: measured}}, known)["verdict"] == verdict
    assert judge(claim, {}, known)["verdict"] == "not measured"

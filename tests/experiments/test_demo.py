"""The demonstration claims nothing that chance could give."""

import math
import re
from pathlib import Path

import pytest

from lowcurve.experiments import demo, moons

CHANCE = {  # column -> (accuracy about which two networks are compared, samples)
    "accuracy": (0.98, 359),
    "pgd_0.5": (0.5, demo.PRESET.samples.pgd),
    "certified_0.1": (0.5, demo.PRESET.samples.stability),
    "moons": (0.99, 1000),
}


def interval(column: str) -> float:
    """95 % of differences between two accuracies that are alike are below this, in points."""
    share, samples = CHANCE[column]
    return 100 * 1.96 * math.sqrt(2 * share * (1 - share) / samples)


def test_every_difference_asked_for_is_beyond_chance() -> None:
    asked = {request.experiment.name: request.experiment for request in demo.requests(Path("a"), Path("b"), 1)}
    for claim in asked["demo"].claims:
        column = claim.cells[0][1]
        if "−" in claim.formula and claim.threshold > 0:
            assert claim.threshold > interval(column), claim
        elif "−" in claim.formula:  # nothing is lost, as far as so many samples tell
            assert -claim.threshold == pytest.approx(interval(column), abs=0.1), claim
        else:  # medians of curvature are known to a factor of 1.5 or better
            assert claim.threshold < 1 / 1.5**2, claim
    nothing_lost = asked["figure-moons"].claims[1]
    assert -nothing_lost.threshold == pytest.approx(interval("moons"), abs=0.1)
    assert asked["figure-saliency"].claims[0].threshold > 0


def test_two_seeds_have_to_agree() -> None:
    asked = [request.experiment for request in demo.requests(Path("a"), Path("b"), 1)]
    assert len(demo.PRESET.seeds) >= 2 and all(len(one.seeds or demo.PRESET.seeds) >= 2 for one in asked)


def test_the_slider_starts_at_the_low_curvature_network() -> None:
    grid = [[0.0, 1.0], [0.0, 1.0]]
    values = {"boundary": grid, "accuracy": 1.0}
    betas = {"standard": {}, "lcnn": {"mean_beta": 6.0}, "beta-1": {"mean_beta": 2.0}}
    outlines = moons.extend({row: {0: values | beta} for row, beta in betas.items()})["extra"]["outlines"]
    assert outlines["nets"][outlines["start"]]["row"] == "lcnn"
    assert re.search("corners", outlines["caption"])

"""A minute of random networks, the same ones every time; longer hunts: `python -m tests.fuzz --minutes 60`."""

import pytest

from tests.fuzz.build import build
from tests.fuzz.hunt import Counts, Found, drawn, hunt, judge
from tests.fuzz.oracles import ORACLES
from tests.fuzz.recipes import draw
from tests.fuzz.shrink import simpler

PARTS = 3  # each oracle's networks are shared among this many tests, which run side by side


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("oracle", [name for name, oracle in ORACLES.items() if oracle.networks])
def test_no_oracle_finds_anything(oracle: str, part: int) -> None:
    found: list[Found] = []
    counts = Counts()
    seeds = ORACLES[oracle].networks
    while not counts.refused[oracle] < counts.networks[oracle]:  # until the oracle has seen something
        assert counts.networks[oracle] < 100, "every network was refused: the oracle sees nothing"
        hunt(oracle, range(seeds - ORACLES[oracle].networks + part, seeds, PARTS), counts, found.append)
        seeds += ORACLES[oracle].networks
    assert not found, "\n\n".join(map(str, found))


def test_a_recipe_makes_the_same_network_again() -> None:
    case = draw(3)
    again = build(case.recipe)
    assert again.source == case.source
    assert all(bool((a == b).all()) for a, b in zip(case.net.parameters(), again.net.parameters(), strict=True))
    assert bool((case.x == again.x).all())


def test_simpler_recipes_are_smaller() -> None:
    recipe = draw(5).recipe
    assert all(len(other["nodes"]) <= len(recipe["nodes"]) and other != recipe for other in simpler(recipe))


def test_certificates_are_not_refused_to_every_normalized_network() -> None:
    cases = (drawn("certificates", seed) for seed in range(80))
    normalized = (case for case in cases if case.recipe["convert"] and case.recipe["spectral"])
    assert any(judge("certificates", case) is None for case in normalized)

import math

import pytest
import torch
from pyautoattack.square import SquareAttack

from lowcurve.attacks import square


@pytest.mark.parametrize("side", [2, 3, 4, 5, 8, 15])
def test_the_patterns_are_those_of_the_authors(side: int) -> None:
    oracle = SquareAttack(None, norm="L2", eps=1.0, device="cpu")
    theirs = oracle.eta(side).double()
    found = square._dipoles((side, side))
    assert min((found[which] - theirs).abs().max() for which in (0, 1)) < 1e-6


@pytest.mark.parametrize("size", [(1, 1), (1, 6), (7, 1), (2, 5), (4, 3)])
def test_patterns_of_any_size_have_unit_norm_and_no_mean(size: tuple[int, int]) -> None:
    found = square._dipoles(size)
    assert found.shape == (2, *size)
    assert torch.allclose(found.square().sum((1, 2)), torch.ones(2, dtype=torch.float64))
    if max(size) % 2 == 0 and min(size) == 1:
        assert found.sum((1, 2)).abs().max() < 0.5


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (1, 1, 1, 64), (1, 3, 32, 32), (1, 1, 5, 40), (1, 2, 40, 5)], ids=str)
@pytest.mark.parametrize("norm", [2, math.inf])
def test_patches_fit_and_shrink(shape: tuple[int, ...], norm: float) -> None:
    sizes = [square._patch(torch.Size(shape), progress / 100, norm) for progress in range(101)]
    areas = [height * width for height, width in sizes]
    assert all(1 <= height <= shape[2] and 1 <= width <= shape[3] for height, width in sizes)
    assert areas == sorted(areas, reverse=True)
    assert areas[0] == pytest.approx(0.8 * shape[2] * shape[3], rel=0.25)


def test_windows_cover_every_position() -> None:
    draws = torch.rand(2000, 2, dtype=torch.float64)
    mask, row, column = square._window(draws, torch.zeros(2000, 1, 5, 6), (2, 3))
    assert bool((mask.sum((1, 2, 3)) == 6).all())
    assert bool(mask.any(0).all())  # the last row and column too, which the authors' code never reaches
    row, column = row.expand(-1, 5, 6), column.expand(-1, 5, 6)
    assert row[0][mask[0, 0]].tolist() == [0, 0, 0, 1, 1, 1]
    assert column[0][mask[0, 0]].tolist() == [0, 1, 2, 0, 1, 2]

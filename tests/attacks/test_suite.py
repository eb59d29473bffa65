"""The standard suite, and the projection that FAB rests on."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import linprog, minimize
from torch import Tensor, nn

from lowcurve.attacks import ATTACKS, attack
from lowcurve.attacks.fab import to_plane
from lowcurve.attacks.suite import Member, in_turn

SUITE = ("apgd-ce", "apgd-t", "fab-t", "square")


@pytest.mark.parametrize("norm", [2, math.inf])
def test_auto_breaks_what_its_attacks_break(
    norm: float, nets: dict[str, nn.Module], samples: tuple[Tensor, Tensor]
) -> None:
    x, y = samples[0][:50], samples[1][:50]
    eps = {2: 0.6, math.inf: 0.12}[norm]
    whole = attack(nets["relu"], x, y, "auto", eps=eps, norm=norm, steps=4)
    single = [
        attack(nets["relu"], x, y, name, eps=eps, norm=norm, steps=200 if name == "square" else 4) for name in SUITE
    ]
    assert torch.equal(whole.success, torch.stack([result.success for result in single]).any(0))
    assert torch.equal(whole.adversarial[single[0].success], single[0].adversarial[single[0].success])


def test_each_attack_gets_the_survivors_and_its_share_of_the_steps() -> None:
    model, seen = nn.Identity(), []

    def breaks(count: int):
        def run(model, x, y, eps, *, norm, steps, restarts, seed) -> Tensor:
            seen.append((len(x), steps))
            return torch.where(torch.arange(len(x))[:, None] < count, x.flip(1), x)

        return run

    x, y = torch.tensor([[1.0, 0.0]] * 5), torch.zeros(5, dtype=torch.int64)
    members = [Member(breaks(2), 1.0), Member(breaks(0), 50.0), Member(breaks(3), 0.01), Member(breaks(0), 1.0)]
    points = in_turn(members, model, x, y, torch.ones(5), norm=2, steps=10, restarts=1, seed=0)
    assert seen == [(5, 10), (3, 500), (3, 1)]
    assert torch.equal(points, x.flip(1))


def test_budgets_are_those_of_autoattack() -> None:
    assert [ATTACKS[name].steps for name in SUITE] == [100, 100, 100, 5000]


@pytest.mark.parametrize("norm", [2, math.inf])
@pytest.mark.parametrize("seed", range(8))
def test_the_way_to_the_plane_is_the_shortest(norm: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    point, slope = rng.random(6), rng.standard_normal(6) * 10.0 ** rng.integers(-4, 4)
    slope[rng.integers(6)] = 0.0
    point[:2] = rng.integers(0, 2, 2)  # at the walls
    reach = slope * np.where(slope > 0, 1 - point, -point)
    gap = -rng.uniform(0.1, 0.9) * reach.sum()
    arguments = (torch.tensor(point)[None], torch.tensor(slope)[None], torch.tensor([gap]))
    delta = to_plane(*arguments, norm)[0].numpy()
    assert gap + slope @ delta == pytest.approx(0, abs=1e-9 * abs(gap))
    assert ((point + delta >= -1e-12) & (point + delta <= 1 + 1e-12)).all()
    if norm == 2:
        plane = {"type": "eq", "fun": lambda d: (gap + slope @ d) / abs(slope).max()}
        walls = list(zip(-point, 1 - point, strict=True))
        best = minimize(lambda d: d @ d, delta * 0, bounds=walls, constraints=plane, tol=1e-14).fun ** 0.5
    else:  # minimize t with |d| ≤ t
        both = np.vstack([np.eye(6), -np.eye(6)])
        rows, walls = np.hstack([both, -np.ones((12, 1))]), [*zip(-point, 1 - point, strict=True), (0, None)]
        best = linprog([0] * 6 + [1], rows, np.zeros(12), [[*slope, 0]], [-gap], bounds=walls).fun
    assert np.linalg.norm(delta, norm) == pytest.approx(best, rel=1e-5)
    beyond = to_plane(arguments[0], arguments[1], 3 * arguments[2], norm)[0].numpy()  # out of the box's reach
    if 3 * abs(gap) > abs(reach.sum()):
        np.testing.assert_allclose((point + beyond)[slope != 0], np.where(slope > 0, 1.0, 0.0)[slope != 0], atol=1e-12)

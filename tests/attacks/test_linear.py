"""Linear classifiers, whose nearest mistakes have a closed form."""

import math

import pytest
import torch
from torch import Tensor, nn

from lowcurve.attacks import attack
from lowcurve.attacks.minimal import minimal_norm


def exact(net: nn.Linear, x: Tensor, y: Tensor, norm: float) -> Tensor:
    """min_c (z_y - z_c)/‖w_y - w_c‖ in the dual norm, away from the box's faces."""
    logits = net(x)
    gaps = logits.gather(1, y[:, None]) - logits
    lengths = torch.linalg.vector_norm(net.weight[y][:, None] - net.weight, 2 if norm == 2 else 1, dim=2)
    return (gaps / lengths).scatter(1, y[:, None], torch.inf).min(1).values


def problem(classes: int, size: int) -> tuple[nn.Linear, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(classes)
    net = nn.Linear(size, classes).double()
    with torch.no_grad():
        net.weight.copy_(torch.randn(classes, size, generator=generator, dtype=torch.float64))
        net.bias.copy_(-net.weight.sum(1) / 2)
    x = 0.5 + 0.02 * torch.randn(16, size, generator=generator, dtype=torch.float64)
    return net.requires_grad_(False), x, net(x).argmax(1)


@pytest.mark.parametrize("norm", [2, math.inf])
@pytest.mark.parametrize("classes", [2, 3, 6])
def test_the_exact_distance_is_found_to_one_percent(norm: float, classes: int) -> None:
    net, x, y = problem(classes, 30)
    truth = exact(net, x, y, norm)
    found = minimal_norm(net, x, y, norm=norm, steps=40, tolerance=0.005)
    assert bool((found.distance >= truth * (1 - 1e-9)).all())
    assert bool((found.distance <= truth * 1.01).all())
    assert bool((found.withstood <= found.distance).all())
    assert bool((net(found.adversarial).argmax(1) != y).all())
    assert torch.allclose(
        torch.linalg.vector_norm(found.adversarial - x, norm, dim=1), found.distance, rtol=1e-5, atol=1e-8
    )


@pytest.mark.parametrize("norm", [2, math.inf])
@pytest.mark.parametrize("name", ["pgd", "pgd-margin", "fgsm", "apgd-t", "square"])
def test_two_classes_break_just_beyond_the_distance_and_not_before(name: str, norm: float) -> None:
    net, x, y = problem(2, 12)
    truth = exact(net, x, y, norm)
    slack = 1.2 if name == "square" else 1.01  # random search is less exact
    assert attack(net, x, y, name, eps=slack * truth, norm=norm, steps=None if name == "fgsm" else 300).accuracy == 0
    assert attack(net, x, y, name, eps=0.999 * truth, norm=norm, steps=None if name == "fgsm" else 60).accuracy == 1


def test_distances_of_mistakes_are_zero_and_of_constants_infinite() -> None:
    net, x, y = problem(3, 5)
    wrong = (y + 1) % 3
    found = minimal_norm(net, x, wrong, name="pgd", steps=3)
    assert bool((found.distance == 0).all()) and torch.equal(found.adversarial, x)
    net.weight.zero_()
    net.bias.copy_(torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64))
    found = minimal_norm(net, x, torch.zeros_like(y), name="pgd", steps=3)
    assert bool(found.distance.isinf().all()) and torch.equal(found.adversarial, x)
    assert torch.allclose(found.withstood, torch.tensor(math.sqrt(5)).double())


def test_the_faces_of_the_box_count() -> None:
    """At x = 0 only entries that may grow help: z₁ - z₀ = w·x - b with w = (1, -1) is reached at (b, 0)."""
    net = nn.Linear(2, 2)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[0.0, 0.0], [1.0, -1.0]]))
        net.bias.copy_(torch.tensor([0.3, 0.0]))
    x, y = torch.zeros(1, 2), torch.zeros(1, dtype=torch.int64)
    for norm in (2, math.inf):
        assert minimal_norm(net, x, y, norm=norm, tolerance=0.005).distance.item() == pytest.approx(0.3, rel=0.01)

"""What is an example at all? Only a finite point in ball and box at which the model has a finite, wrong answer."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from lowcurve.attacks import ATTACKS, attack
from lowcurve.attacks.evaluate import evaluate
from lowcurve.attacks.explanations import noisy
from lowcurve.attacks.minimal import minimal_norm
from lowcurve.data.dataset import Split

STEPS = {"square": 60, "fgsm": None, "auto": 2}
everyone = pytest.mark.parametrize("name", ATTACKS)
both = pytest.mark.parametrize("norm", [2, math.inf])
WEIGHT = torch.randn(4, 12, generator=torch.Generator().manual_seed(1))


class Net(nn.Module):
    """A linear classifier of features that are not finite, or not differentiable, somewhere in the box."""

    def __init__(self, features) -> None:
        super().__init__()
        self.features = features

    def forward(self, x: Tensor) -> Tensor:
        return self.features(x.flatten(1)) @ WEIGHT.to(x).T


def half_space(x: Tensor) -> Tensor:
    """No answer at all (NaN) where the mean exceeds a half."""
    return torch.where(x.mean(1, keepdim=True) > 0.5, torch.nan, x)


BROKEN = {
    "nan in half of the box": half_space,
    "root of what may be negative": lambda x: (x - 0.2).sqrt(),
    "infinite slope": lambda x: x.sqrt(),
    "nan slope": lambda x: (x - 0.4).square().sum(1, keepdim=True).sqrt() + x,
    "overflow": lambda x: (x * 1e3).exp() + x,
    "one infinite logit": lambda x: torch.where(x > 0.45, torch.inf, x),
}


def length(adversarial: Tensor, x: Tensor, norm: float) -> Tensor:
    return torch.linalg.vector_norm((adversarial.double() - x.double()).flatten(1), norm, dim=1)


@everyone
@both
@pytest.mark.parametrize("kind", BROKEN)
def test_no_answer_is_no_success(name: str, norm: float, kind: str) -> None:
    net = Net(BROKEN[kind])
    x = 0.2 + 0.2 * torch.rand(24, 3, 2, 2, generator=torch.Generator().manual_seed(2))
    x[x < 0.25] = 0.4 if kind == "nan slope" else 0.25
    x = x.clamp_max(0.08) if kind == "overflow" else x
    y = net(x).argmax(1)
    result = attack(net, x, y, name, eps=0.3, norm=norm, steps=STEPS.get(name, 10))
    logits = net(result.adversarial)
    assert result.adversarial.isfinite().all() and logits[result.success].isfinite().all()
    assert torch.equal(result.success, (logits.argmax(1) != y) & logits.isfinite().all(1))
    assert (length(result.adversarial, x, norm) <= 0.3 * (1 + 1e-6)).all()


@pytest.mark.parametrize("name", ["pgd", "apgd-ce", "apgd-t", "fab-t", "square"])
def test_examples_on_the_finite_side_are_still_found(name: str) -> None:
    """Half of each ball has no answer; the other half holds examples for a linear classifier."""
    net = Net(half_space)
    x = 0.3 + 0.19 * torch.rand(40, 12, generator=torch.Generator().manual_seed(3))
    y = net(x).argmax(1)
    linear = Net(lambda x: x)
    reachable = attack(linear, x, y, name, eps=0.25).success
    found = attack(net, x, y, name, eps=0.25).success
    assert reachable.sum() >= 10
    assert found.sum() >= 0.6 * reachable.sum()


def test_infinite_slopes_are_followed() -> None:
    net = Net(lambda x: x.sqrt())
    x = torch.zeros(8, 12) + (torch.arange(12) % 2) * 0.3
    y = net(x).argmax(1)
    assert attack(net, x, y, "fgsm", eps=1.0).success.all()


@everyone
@both
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_ball_holds_at_every_radius(name: str, norm: float, dtype: torch.dtype) -> None:
    x = torch.rand(6, 3, 10, 10, generator=torch.Generator().manual_seed(4)).to(dtype)
    x[0], x[1, :2] = 0, 1
    weight = torch.randn(4, 300, generator=torch.Generator().manual_seed(5), dtype=dtype)
    net = nn.Sequential(nn.Flatten(), nn.Linear(300, 4)).to(dtype)
    net[1].weight.data = 1e9 * (weight - weight.mean(0))
    net[1].bias.data = -(x.flatten(1) @ net[1].weight.data.T).mean(0)
    y = net(x).argmax(1)
    steps = {"square": 30, "fgsm": None, "auto": 1}.get(name, 4)
    for eps in (1e-45, 1e-30, 1e-10, 3e-8, 1e-7, 1e-6, 1e-4, 0.1, 1.0, 1e6, 1e30, 1e300):
        result = attack(net, x, y, name, eps=eps, norm=norm, steps=steps)
        reached = length(result.adversarial, x, norm)
        assert (reached <= eps * (1 + 1e-6)).all(), (eps, reached / eps)
        assert (result.adversarial >= 0).all() and (result.adversarial <= 1).all(), eps
        assert torch.equal(result.success, net(result.adversarial).argmax(1) != y), eps


def test_noise_and_minimal_norms_keep_to_their_radii() -> None:
    x = torch.rand(5, 64, generator=torch.Generator().manual_seed(6))
    for radius in (0.0, 1e-7, 1e-3, 0.5):
        assert (length(noisy(x, radius), x, 2) <= radius * (1 + 1e-6)).all()
    net = nn.Linear(64, 3)
    y = net(x).argmax(1)
    found = minimal_norm(net, x, y, name="pgd", steps=5)
    assert torch.allclose(length(found.adversarial, x, 2).float(), found.distance)
    half = Net(half_space)
    found = minimal_norm(half, x[:, :12] / 2, half(x[:, :12] / 2).argmax(1), name="pgd", steps=5)
    assert found.adversarial.isfinite().all() and half(found.adversarial).isfinite().all()
    tied = minimal_norm(nn.Linear(2, 2, bias=False), torch.zeros(1, 2), torch.tensor([0]), name="fgsm")
    assert tied.distance < 1e-40  # every number there is was tried, and no more


@pytest.mark.parametrize("wrap", [lambda z: {"logits": z}, lambda z: SimpleNamespace(loss=None, logits=z)])
def test_outputs_that_hold_logits(wrap) -> None:
    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: Tensor):
            return wrap(self.net(x))

    net = nn.Linear(12, 4)
    x = torch.rand(16, 12)
    y = net(x).argmax(1)
    for name in ATTACKS:
        plain, wrapped = (attack(m, x, y, name, eps=0.2, steps=STEPS.get(name, 5)) for m in (net, Wrapped()))
        assert torch.equal(plain.adversarial, wrapped.adversarial)
    split = Split((255 * x).byte(), y)
    assert evaluate(Wrapped(), split, ["pgd"], [0.1]).rows == evaluate(net, split, ["pgd"], [0.1]).rows


@everyone
def test_a_model_that_overwrites_its_input_is_attacked_like_any_other(name: str) -> None:
    torch.manual_seed(0)
    layer, x, y = nn.Linear(3, 3), torch.rand(4, 3), torch.tensor([0, 1, 2, 0])
    before, steps = x.clone(), 1 if name == "fgsm" else 3
    found = [
        attack(nn.Sequential(nn.Hardtanh(0.2, 0.8, inplace=inplace), layer), x, y, name, eps=0.5, steps=steps)
        for inplace in (False, True)
    ]
    assert torch.equal(x, before)
    assert torch.equal(found[0].adversarial, found[1].adversarial)

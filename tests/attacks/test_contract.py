"""What every attack promises, checked for every member of the table."""

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from lowcurve.attacks import ATTACKS, attack
from lowcurve.errors import UserError

STEPS = {"square": 40, "apgd-ce": 8, "apgd-t": 8, "fab-t": 8, "pgd": 8, "pgd-margin": 8, "fgsm": None, "auto": 3}
WITHOUT_CHANCE = ("fgsm", "fab-t")  # FAB's first run starts from the sample itself
BRIEF = {"fgsm": None, "auto": 1}
NORMS = (2, math.inf)
everyone = pytest.mark.parametrize("name", ATTACKS)
both = pytest.mark.parametrize("norm", NORMS)
RADII = {2: 0.5, math.inf: 0.08}


def inside(adversarial: Tensor, x: Tensor, eps: Tensor | float, norm: float) -> bool:
    """Numpy-style truth in float64, on its own."""
    delta = (adversarial.double() - x.double()).flatten(1)
    length = delta.pow(2).sum(1).sqrt() if norm == 2 else delta.abs().max(1).values
    return bool((length <= eps + 1e-5).all() and (adversarial >= 0).all() and (adversarial <= 1).all())


@everyone
@both
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_examples_are_valid_and_the_accuracy_is_theirs(
    name: str, norm: float, dtype: torch.dtype, nets: dict[str, nn.Module], samples: tuple[Tensor, Tensor]
) -> None:
    x, y = samples[0][:60].to(dtype), samples[1][:60]
    net = nets["relu"].to(dtype)
    result = attack(net, x, y, name, eps=RADII[norm], norm=norm, steps=STEPS[name])
    wrong, clean = net(result.adversarial).argmax(1) != y, (net(x).argmax(1) != y).sum()
    net.float()
    assert result.adversarial.dtype == dtype
    assert inside(result.adversarial, x, RADII[norm], norm)
    assert torch.equal(result.success, wrong)
    assert result.accuracy == pytest.approx(1 - wrong.double().mean().item())
    assert clean < wrong.sum() < 60  # it does something


@everyone
@both
def test_radius_zero_changes_nothing(
    name: str, norm: float, nets: dict[str, nn.Module], samples: tuple[Tensor, Tensor]
) -> None:
    x, y = samples
    result = attack(nets["lcnn"], x, y, name, eps=0.0, norm=norm, steps=STEPS[name])
    assert torch.equal(result.adversarial, x)
    assert torch.equal(result.success, nets["lcnn"](x).argmax(1) != y)


@everyone
@both
def test_a_sample_is_attacked_alike_in_every_batch(
    name: str, norm: float, nets: dict[str, nn.Module], samples: tuple[Tensor, Tensor]
) -> None:
    x, y = samples[0][:12].double(), samples[1][:12]
    net = copy.deepcopy(nets["lcnn"]).double()
    eps = torch.linspace(0.5, 1.5, 12).double() * RADII[norm]
    steps = {"fgsm": None, "auto": 1, "square": 30}.get(name, 4)

    def run(chosen: Tensor) -> Tensor:
        return attack(net, x[chosen], y[chosen], name, eps=eps[chosen], norm=norm, steps=steps, restarts=2).adversarial

    whole = run(torch.arange(12))
    order = torch.randperm(12)
    parts = torch.cat([run(part) for part in order.split(7)])
    assert torch.allclose(parts, whole[order], atol=1e-9)
    assert not torch.allclose(whole, x)


@everyone
def test_seeds_matter_where_there_is_chance(
    name: str, nets: dict[str, nn.Module], samples: tuple[Tensor, Tensor]
) -> None:
    x, y = samples[0][:20], samples[1][:20]
    runs = [attack(nets["relu"], x, y, name, eps=1.0, steps=STEPS[name], seed=seed).adversarial for seed in (0, 1, 0)]
    assert torch.equal(runs[0], runs[2])
    assert torch.equal(runs[0], runs[1]) == (name in WITHOUT_CHANCE)


@everyone
def test_one_radius_per_sample(name: str, nets: dict[str, nn.Module], samples: tuple[Tensor, Tensor]) -> None:
    x, y = samples[0][:40], samples[1][:40]
    eps = torch.linspace(0, 1, 40)
    together = attack(nets["relu"], x, y, name, eps=eps, steps=STEPS[name])
    assert inside(together.adversarial, x, eps, 2)
    alone = attack(nets["relu"], x[20:], y[20:], name, eps=eps[20:], steps=STEPS[name])
    assert torch.equal(together.success[20:], alone.success)


@everyone
def test_the_model_and_the_global_generator_stay_as_they_were(name: str, samples: tuple[Tensor, Tensor]) -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Dropout(), nn.Flatten(), nn.Linear(144, 10)).train()
    net[0].weight.requires_grad_(False)
    before = {key: value.clone() for key, value in net.state_dict().items()}
    state = torch.get_rng_state()
    attack(net, *samples, name, eps=0.3, steps=STEPS[name])
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())
    assert all(module.training for module in net.modules())
    assert [p.requires_grad for p in net.parameters()] == [False, True, True, True, True, True]
    assert all(p.grad is None for p in net.parameters())


@everyone
@both
@pytest.mark.parametrize("classes", [2, 3, 10])
def test_any_shape_and_any_number_of_classes(name: str, norm: float, classes: int) -> None:
    for shape in ((5,), (1,), (2, 9), (1, 1, 1), (3, 4, 7), (1, 9, 2), (2, 3, 4, 5)):
        generator = torch.Generator().manual_seed(0)
        size = math.prod(shape)
        net = nn.Sequential(nn.Flatten(), nn.Linear(size, classes))
        net[1].weight.data = torch.randn(classes, size, generator=generator)
        net[1].bias.data = -net[1].weight.data.sum(1) / 2
        x = 0.3 + 0.4 * torch.rand(16, *shape, generator=generator)
        y = net(x).argmax(1)
        result = attack(net, x, y, name, eps=0.5, norm=norm, steps=STEPS[name])
        assert inside(result.adversarial, x, 0.5, norm), shape
        # in one dimension a class may have no border within reach; elsewhere half the box is more than enough
        assert bool(result.success.any()) or size == 1, shape


@everyone
@both
def test_a_constant_classifier_is_right_or_wrong_for_ever(name: str, norm: float) -> None:
    class Constant(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.ones(len(x), 4)

    x, y = torch.rand(8, 6), torch.arange(8) % 4
    result = attack(Constant(), x, y, name, eps=0.5, norm=norm, steps=STEPS[name])
    assert torch.equal(result.success, y != 0)
    assert torch.equal(result.adversarial, x)


@everyone
@both
def test_the_memory_layout_makes_no_difference(
    name: str, norm: float, nets: dict[str, nn.Module], samples: tuple[Tensor, Tensor]
) -> None:
    x, y = samples[0][:20], samples[1][:20]
    transposed = x.transpose(2, 3).contiguous().transpose(2, 3)
    assert torch.equal(transposed, x) and not transposed.is_contiguous()
    plain, other = (
        attack(nets["relu"], batch, y, name, eps=RADII[norm], norm=norm, steps=STEPS[name]) for batch in (x, transposed)
    )
    assert torch.equal(plain.success, other.success)
    assert torch.allclose(plain.adversarial, other.adversarial, atol=1e-3)


@everyone
def test_models_that_cannot_take_an_empty_batch(name: str) -> None:
    class Picky(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            assert len(x)
            return super().forward(x)

    net = Picky(3, 4)
    x = torch.rand(9, 3)
    y = net(x).argmax(1)
    for eps in (1e-4, 1.0):  # all withstand and APGD-T's runs are given up; all are broken
        attack(net, x, y, name, eps=eps, steps={"fgsm": None, "auto": 25}.get(name, 60))
    attack(net, x, (y + 1) % 4, name, eps=0.1, steps=None if name == "fgsm" else 5)


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(sorted(ATTACKS)),
    norm=st.sampled_from(NORMS),
    shape=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    classes=st.integers(2, 6),
    eps=st.floats(0, 3),
    scale=st.sampled_from([1e-6, 1.0, 1e6]),
    seed=st.integers(0, 2**32),
)
def test_ball_and_box_are_never_left(
    name: str, norm: float, shape: list[int], classes: int, eps: float, scale: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    size = math.prod(shape)
    weight = scale * torch.randn(classes, size, generator=generator)
    bend = scale * torch.randn(classes, size, generator=generator)

    class Net(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(1) @ weight.T + (3 * x.flatten(1)).sin() @ bend.T

    x = torch.rand(6, *shape, generator=generator).round(decimals=1)
    y = torch.randint(classes, (6,), generator=generator)
    result = attack(Net(), x, y, name, eps=eps, norm=norm, steps=BRIEF.get(name, 5), restarts=2)
    assert inside(result.adversarial, x, eps, norm)
    assert torch.equal(result.success, Net()(result.adversarial).argmax(1) != y)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "pdg"}, "did you mean 'pgd'"),
        ({"x": torch.zeros(3, 2, dtype=torch.uint8)}, r"convert it: x.float\(\) / 255"),
        ({"x": torch.tensor([[2.0, 0.0]] * 3)}, r"expected inputs in \[0, 1\], got 0 to 2"),
        ({"x": torch.tensor([[torch.nan, 0.0]] * 3)}, r"expected inputs in \[0, 1\]"),
        ({"y": torch.zeros(2, dtype=torch.int64)}, "one int64 label per sample"),
        ({"y": torch.tensor([0, 1, 7])}, "labels from 0 to 1"),
        ({"eps": -0.1}, "eps as a finite number from 0"),
        ({"eps": torch.ones(2)}, "one eps or 3"),
        ({"norm": 1}, "norm 2 or math.inf"),
        ({"steps": 0}, "steps as a whole number from 1"),
        ({"name": "fgsm", "steps": 2, "y": None}, "one step of fgsm, got 2; for more use pgd"),
        ({"model": nn.Linear(2, 1)}, "two or more classes"),
        ({"model": nn.Linear(2, 2).requires_grad_(False), "nan": True}, "finite weights"),
    ],
)
def test_mistakes_are_explained(change: dict, message: str) -> None:
    arguments = {"model": nn.Linear(2, 2), "x": torch.zeros(3, 2), "y": torch.zeros(3, dtype=torch.int64)}
    arguments |= {"name": "pgd", "eps": 0.1} | change
    if arguments.pop("nan", False):
        arguments["model"].weight.fill_(torch.nan)
    if arguments["y"] is None:  # an attack on the labels that the model gives
        arguments["y"] = arguments["model"](arguments["x"]).argmax(1)
    with pytest.raises(UserError, match=message):
        attack(**arguments)

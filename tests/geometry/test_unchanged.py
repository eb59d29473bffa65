"""Measuring changes nothing: not the model's mode, gradients, buffers or flags, not the inputs, not the RNG."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import lowcurve as lc

MEASURES: dict[str, Callable[[nn.Module, Tensor, Tensor], object]] = {
    "curvature": lambda net, x, y: lc.curvature(net, x, y),
    "power": lambda net, x, y: lc.curvature(net, x, y, method="power"),
    "stability": lambda net, x, y: lc.gradient_stability(net, x, y, [0.1], samples=1, direction="adversarial", steps=2),
    "linearity": lambda net, x, y: lc.local_linearity(net, x, y, [0.1], samples=1, direction="adversarial", steps=2),
}


class Counter(nn.Module):
    """Counts its calls in a buffer, even in eval mode, and writes into its input."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x.add_(0.0)


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Softplus(5), nn.Dropout(0.5), nn.Flatten(), nn.Linear(144, 3)]
    net = nn.Sequential(Counter(), *layers)
    net.train()
    net[2].eval()  # modes differ by module
    net[1].weight.requires_grad_(False)
    net[6].weight.grad = torch.full_like(net[6].weight, 7.0)
    return net


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(3, 1, 8, 8, generator=generator), torch.tensor([0, 2, 1])


@pytest.mark.parametrize("name", MEASURES)
def test_mode(name: str, model: nn.Module, batch: tuple[Tensor, Tensor]) -> None:
    before = [module.training for module in model.modules()]
    MEASURES[name](model, *batch)
    assert [module.training for module in model.modules()] == before
    assert len(set(before)) == 2


@pytest.mark.parametrize("name", MEASURES)
def test_grad_and_requires_grad(name: str, model: nn.Module, batch: tuple[Tensor, Tensor]) -> None:
    before = [parameter.requires_grad for parameter in model.parameters()]
    MEASURES[name](model, *batch)
    assert [parameter.requires_grad for parameter in model.parameters()] == before
    assert (model[6].weight.grad == 7).all()
    assert all(p.grad is None for p in model.parameters() if p is not model[6].weight)


@pytest.mark.parametrize("name", MEASURES)
def test_buffers_and_parameters(name: str, model: nn.Module, batch: tuple[Tensor, Tensor]) -> None:
    before = {key: value.clone() for key, value in model.state_dict().items()}
    MEASURES[name](model, *batch)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert model[0].calls == 0


@pytest.mark.parametrize("name", MEASURES)
def test_random_numbers(name: str, model: nn.Module, batch: tuple[Tensor, Tensor]) -> None:
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002 the global state is what is looked at
    MEASURES[name](model, *batch)
    drawn = torch.rand(3), np.random.rand(3)  # noqa: NPY002
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    assert torch.equal(drawn[0], torch.rand(3)) and (drawn[1] == np.random.rand(3)).all()  # noqa: NPY002


@pytest.mark.parametrize("name", MEASURES)
def test_inputs(name: str, model: nn.Module, batch: tuple[Tensor, Tensor]) -> None:
    x, y = batch
    x.requires_grad_()
    before = x.detach().clone()
    MEASURES[name](model, x, y)
    assert torch.equal(x.detach(), before) and x.grad is None and x.requires_grad


@pytest.mark.parametrize("name", MEASURES)
def test_an_error_restores_too(name: str, model: nn.Module, batch: tuple[Tensor, Tensor]) -> None:
    with pytest.raises(ValueError, match=r"labels in 0\.\.2"):
        MEASURES[name](model, batch[0], torch.tensor([0, 1, 3]))
    assert model.training and model[6].weight.requires_grad and model[0].calls == 0


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_contexts_of_the_caller_do_not_matter(
    context: Callable[[], object], model: nn.Module, batch: tuple[Tensor, Tensor]
) -> None:
    expected = lc.curvature(model, *batch)
    with context():
        found = lc.curvature(model, batch[0].clone(), batch[1])
    assert torch.equal(found.hessian_norm, expected.hessian_norm)


def test_the_same_seed_gives_the_same_bits(model: nn.Module, batch: tuple[Tensor, Tensor]) -> None:
    one, two = lc.curvature(model, *batch, seed=3), lc.curvature(model, *batch, seed=3)
    assert all(torch.equal(a, b) for a, b in zip(vars(one).values(), vars(two).values(), strict=True))
    other = lc.curvature(model, *batch, seed=4)
    assert torch.allclose(one.hessian_norm, other.hessian_norm, rtol=1e-2)
    assert not torch.equal(one.residual, other.residual)

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck

from lowcurve.layers import _loops
from lowcurve.layers.second_order import fast_double_backward


def inside(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def wrapped(*args: Tensor) -> Tensor:
        with fast_double_backward():
            return function(*args)

    return wrapped


def conv2d(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.conv2d(x, w, b, stride=(2, 1), padding=1, dilation=(1, 2), groups=2)


def conv1d(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.conv1d(x, w, b, padding=2)


def batch_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.batch_norm(x, None, None, w, b, training=True)


def bare_batch_norm(x: Tensor) -> Tensor:
    return F.batch_norm(x, None, None, training=True)


def eval_batch_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    mean, variance = torch.tensor([0.3, -2.0]).to(x), torch.tensor([0.5, 4.0]).to(x)
    return F.batch_norm(x, mean, variance, w, b)


CASES = {
    "eval_batch_norm": (eval_batch_norm, [(4, 2, 3), (2,), (2,)]),
    "conv2d": (conv2d, [(2, 4, 5, 5), (4, 2, 3, 2), (4,)]),
    "conv1d": (conv1d, [(2, 2, 5), (3, 2, 3), (3,)]),
    "batch_norm": (batch_norm, [(4, 2, 3), (2,), (2,)]),
    "bare_batch_norm": (bare_batch_norm, [(3, 2, 2, 2)]),
}


def arguments(shapes: list[tuple[int, ...]]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(s, generator=generator, dtype=torch.float64).requires_grad_() for s in shapes]


@pytest.mark.parametrize("name", CASES)
def test_first_and_second_derivatives_pass_gradcheck(name: str) -> None:
    function, shapes = CASES[name]
    inputs = arguments(shapes)
    assert gradcheck(inside(function), inputs)
    assert gradgradcheck(inside(function), inputs)


@pytest.mark.parametrize("name", CASES)
def test_the_fast_path_of_gradient_penalties_equals_pytorch(name: str) -> None:
    function, shapes = CASES[name]

    def penalty_gradients(f: Callable[..., Tensor]) -> list[Tensor]:
        inputs = arguments(shapes)
        loss = f(*inputs).sin().sum()
        (gradient,) = torch.autograd.grad(loss, inputs[0], create_graph=True)
        (gradient.square().sum() + loss).backward()
        return [t.grad for t in inputs]

    for ours, theirs in zip(penalty_gradients(inside(function)), penalty_gradients(function), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-12)


@pytest.mark.parametrize("beta", [1.0, 1000.0])
def test_softplus_of_a_plain_layer(beta: float) -> None:
    x = torch.randn(4096) * 2 / beta**0.5

    def derivatives(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        z.requires_grad_()
        y = nn.Softplus(beta, threshold=200)(z)
        (first,) = torch.autograd.grad(y.square().sum(), z, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), z)
        return y, first, second

    with fast_double_backward():
        fast = derivatives(x.clone())
    for ours, exact in zip(fast, derivatives(x.double()), strict=True):
        assert float((ours - exact).abs().max()) <= 1e-6 * float(exact.abs().max())


def test_a_network_trains_alike_and_updates_its_statistics() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding="same"), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
    )
    net = net.double()
    x = torch.randn(5, 2, 4, 4, dtype=torch.float64, requires_grad=True)
    results = []
    for fast in (False, True):
        net[1].reset_running_stats()
        net.zero_grad()
        with inside_or_not(fast):
            out = net(x).square().sum()
        (gradient,) = torch.autograd.grad(out, x, create_graph=True)
        gradient.square().mean().backward()
        results.append([p.grad.clone() for p in net.parameters() if p.grad is not None] + [net[1].running_var.clone()])
    assert len(results[0]) == len(results[1]) > 3
    for plain, quick in zip(*results, strict=True):
        assert torch.allclose(plain, quick, atol=1e-12)


def inside_or_not(fast: bool) -> object:
    return fast_double_backward() if fast else torch.enable_grad()


@pytest.mark.skipif(not _loops.applies(torch.zeros(1)), reason="installed without a C compiler")
@pytest.mark.parametrize("shape", [(7, 5), (4, 3, 9), (5, 1, 1, 1), (6, 17, 8, 8), (3, 2, 70, 65)])
@pytest.mark.parametrize("affine", [False, True])
def test_compiled_batch_norm_against_float64(shape: tuple[int, ...], affine: bool) -> None:
    """Values, running statistics, gradients and their gradients, of data whose mean is above their spread."""
    torch.manual_seed(0)
    exact = nn.BatchNorm1d(shape[1], affine=affine, momentum=1 if affine else 0.1).double()
    exact._check_input_dim = lambda x: None
    if affine:
        nn.init.normal_(exact.weight)
        nn.init.normal_(exact.bias)
    ours = copy.deepcopy(exact).float()
    x = (torch.randn(shape, dtype=torch.float64) + 3).float()
    weights = torch.randn(shape)
    results = {}
    for norm, inputs in ((ours, x.requires_grad_()), (exact, x.detach().double().requires_grad_())):
        with fast_double_backward():
            y = norm(inputs)
        (first,) = torch.autograd.grad((y * weights).sum(), inputs, create_graph=True)
        wanted = (inputs, norm.weight) if affine else (inputs,)
        second = torch.autograd.grad((first * weights.flip(0)).square().sum() + (y * weights).sum(), wanted)
        results[norm] = [y.detach(), norm.running_mean, norm.running_var, first.detach(), *second]
    for mine, truth in zip(results[ours], results[exact], strict=True):
        assert mine.dtype == torch.float32
        assert torch.allclose(mine.double(), truth, rtol=1e-4, atol=1e-4 * float(truth.abs().max()))

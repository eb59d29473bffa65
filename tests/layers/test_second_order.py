import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck

from lowcurve.kernels.replace import fast_double_backward


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


def test_third_derivatives_of_batch_norm_are_those_of_its_definition() -> None:
    """Not those of PyTorch 2.13, which are a tenth off."""

    def definition(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        centered = x - x.mean((0, 2), keepdim=True)
        hat = centered / (centered.square().mean((0, 2), keepdim=True) + 1e-5).sqrt()
        return hat * w.view(-1, 1) + b.view(-1, 1)

    def derivatives(f: Callable[..., Tensor]) -> list[Tensor]:
        inputs = arguments([(4, 2, 3), (2,), (2,)])
        loss = f(*inputs).sin().square().sum()
        for _ in range(2):
            loss = sum(g.square().sum() for g in torch.autograd.grad(loss, inputs, create_graph=True))
        return list(torch.autograd.grad(loss, inputs))

    for ours, exact in zip(derivatives(inside(batch_norm)), derivatives(definition), strict=True):
        assert torch.allclose(ours, exact, rtol=1e-9)


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


def both_ways(
    x: Tensor, *, twice: bool, affine: bool = True, momentum: float | None = 0.1
) -> list[tuple[Tensor, Tensor]]:
    """Values, running statistics, gradients and their gradients of a batch norm, ours in float32 and exact."""
    torch.manual_seed(0)
    exact = nn.BatchNorm1d(x.shape[1], affine=affine, momentum=momentum).double()
    exact._check_input_dim = lambda x: None
    exact.running_var.fill_(100.0)
    if affine:
        nn.init.normal_(exact.weight)
        nn.init.normal_(exact.bias)
    ours = copy.deepcopy(exact).float()
    weights = torch.randn_like(x)
    found = []
    for norm, inputs in ((ours, x.clone()), (exact, x.double())):
        with fast_double_backward(twice=twice):
            y = norm(inputs.requires_grad_())
        wanted = (inputs, *norm.parameters())
        first = torch.autograd.grad((y * weights).sum(), wanted, create_graph=True)
        second = torch.autograd.grad((first[0] * weights.flip(0)).square().sum(), wanted[: 2 if affine else 1])
        found.append([y, norm.running_mean, norm.running_var, *first, *second])
    return list(zip(*found, strict=True))


@pytest.mark.parametrize("shape", [(7, 5), (4, 3, 9), (5, 1, 1, 1), (6, 17, 8, 8), (3, 2, 70, 65)])
@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("momentum", [None, 0.1, 1])
@pytest.mark.parametrize("twice", [False, True])
def test_batch_norm_in_float32_against_float64(
    shape: tuple[int, ...], affine: bool, momentum: float | None, twice: bool
) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)) + 3
    for mine, truth in both_ways(x, twice=twice, affine=affine, momentum=momentum):
        assert mine.dtype == torch.float32
        assert torch.allclose(mine.double(), truth, rtol=1e-4, atol=2e-5 * float(truth.abs().max()))


def test_batch_norm_in_another_layout_and_of_long_rows() -> None:
    """What the compiled loops do not take goes to PyTorch's; sums over a million values keep their digits."""
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(6, 5, 8, 8, generator=generator).contiguous(memory_format=torch.channels_last)
    for x in (images, torch.randn(1, 1, 1_000_000, generator=generator) + 3):
        for mine, truth in both_ways(x, twice=True)[:4]:
            assert torch.allclose(mine.double(), truth, rtol=1e-5, atol=2e-6 * float(truth.abs().max()))


def test_batch_norm_refuses_what_pytorch_refuses_and_takes_strided_statistics() -> None:
    with fast_double_backward(), pytest.raises(RuntimeError, match="running_mean should contain 8 elements not 4"):
        nn.BatchNorm2d(4)(torch.randn(2, 8, 3, 3, requires_grad=True))
    x = torch.randn(6, 3, 4, 4, requires_grad=True)
    ours, theirs = torch.zeros(3, 2)[:, 0], torch.zeros(3)
    with fast_double_backward():
        F.batch_norm(x, ours, torch.ones(3), training=True)
    F.batch_norm(x, theirs, torch.ones(3), training=True)
    assert torch.allclose(ours, theirs)


def test_a_threshold_of_softplus_is_kept() -> None:
    x = torch.linspace(-3, 3, 50)
    with fast_double_backward():
        y = F.softplus(x.requires_grad_(), 1.0, 0.5)
    assert torch.equal(y, F.softplus(x, 1.0, 0.5))


def test_a_softplus_with_negative_beta_is_pytorch_s() -> None:
    x = torch.randn(20)
    expected = F.softplus(x, beta=-1.0)
    with fast_double_backward():
        assert torch.equal(F.softplus(x, beta=-1.0), expected)


@pytest.mark.parametrize("dims", [1, 2])
def test_a_single_sample_without_a_first_dimension(dims: int) -> None:
    """PyTorch's convolutions take (C, L) and (C, H, W) too."""
    layer = {1: nn.Conv1d, 2: nn.Conv2d}[dims](2, 3, 3, dtype=torch.float64)
    x = torch.rand(2, *(6,) * dims, dtype=torch.float64, requires_grad=True)

    def penalty() -> Tensor:
        (slope,) = torch.autograd.grad(layer(x).sin().sum(), x, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), layer.weight)[0]

    with fast_double_backward():
        found = penalty()
    assert torch.allclose(found, penalty(), rtol=1e-12)

import copy

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.autograd import gradcheck, gradgradcheck

from lowcurve import CenteredSoftplus
from lowcurve.kernels.cpu.library import LIBRARY
from lowcurve.kernels.reference.softplus import composite_softplus
from lowcurve.kernels.softplus import _Softplus, centered_softplus

BETAS = [1e-6, 1e-3, 0.3, 1.0, 5.0, 1e3, 1e6]


def points(dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    scales = [1e-6, 1e-3, 0.1, 1.0, 20.0, 1e3, 1e6]
    drawn = torch.cat([torch.randn(12, generator=generator, dtype=torch.float64) * s for s in scales])
    return torch.cat([drawn.clamp(-1e6, 1e6), torch.tensor([0.0, 1e6, -1e6], dtype=torch.float64)]).to(dtype)


def truth(x: torch.Tensor, beta: float, order: int) -> torch.Tensor:
    """s₀ or its derivatives in x to 60 digits."""
    mpmath.mp.dps = 60

    def at(value: float) -> float:
        b, z = mpmath.mpf(beta), mpmath.mpf(value)
        if order == 0:
            return float(mpmath.log((1 + mpmath.exp(b * z)) / 2) / b)
        sigma = 1 / (1 + mpmath.exp(-b * z))
        return float(sigma if order == 1 else b * sigma * (1 - sigma))

    return torch.tensor([at(v) for v in x.double().tolist()], dtype=torch.float64)


def layer_at(beta: float, dtype: torch.dtype) -> tuple[CenteredSoftplus, float]:
    layer = CenteredSoftplus(beta).to(dtype)
    return layer, float(layer.beta.detach())


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_value_is_exact_to_a_few_ulp(beta: float, dtype: torch.dtype) -> None:
    layer, actual_beta = layer_at(beta, dtype)
    x = points(dtype)
    expected = truth(x, actual_beta, 0)
    error = (layer(x).detach().double() - expected).abs()
    assert bool((error <= 5 * torch.finfo(dtype).eps * expected.abs()).all())


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_derivatives_in_x_match_high_precision(beta: float, dtype: torch.dtype) -> None:
    layer, actual_beta = layer_at(beta, dtype)
    x = points(dtype).requires_grad_()
    (slope,) = torch.autograd.grad(layer(x).sum(), x, create_graph=True)
    (bend,) = torch.autograd.grad(slope.sum(), x)
    eps = torch.finfo(dtype).eps
    assert float((slope.detach().double() - truth(x.detach(), actual_beta, 1)).abs().max()) <= 8 * eps
    assert float((bend.double() - truth(x.detach(), actual_beta, 2)).abs().max()) <= 8 * eps * actual_beta


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("beta", [1e-4, 0.3, 5.0, 1e3])
def test_derivative_in_beta_matches_high_precision(beta: float, dtype: torch.dtype) -> None:
    layer, actual_beta = layer_at(beta, dtype)
    for value in (-3.0, -0.2, 1e-3, 0.7, 40.0):
        layer.log_beta.grad = None
        layer(torch.tensor([value], dtype=dtype)).sum().backward()
        b, z = mpmath.mpf(actual_beta), mpmath.mpf(float(torch.tensor(value, dtype=dtype)))
        expected = float(z / (1 + mpmath.exp(-b * z)) - mpmath.log((1 + mpmath.exp(b * z)) / 2) / b)
        assert float(layer.log_beta.grad) == pytest.approx(expected, rel=2e3 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("beta", [0.05, 1.0, 7.0])
def test_gradcheck_to_second_order_in_x_and_beta(beta: float) -> None:
    log_beta = torch.tensor(beta, dtype=torch.float64).log().requires_grad_()
    x = torch.tensor([-4.0, -0.3, 0.0, 1e-3, 0.5, 3.0], dtype=torch.float64, requires_grad=True)
    assert gradcheck(centered_softplus, (x, log_beta))
    assert gradgradcheck(centered_softplus, (x, log_beta))


def test_third_derivative_follows() -> None:
    log_beta = torch.tensor(0.7, dtype=torch.float64)
    x = torch.tensor([-1.0, 0.0, 0.4], dtype=torch.float64, requires_grad=True)
    value = centered_softplus(x, log_beta).sum()
    for _ in range(3):
        (value_x,) = torch.autograd.grad(value, x, create_graph=True)
        value = value_x.sum()
    beta, sigma = log_beta.exp(), torch.sigmoid(log_beta.exp() * x)
    assert torch.allclose(value_x, beta**2 * sigma * (1 - sigma) * (1 - 2 * sigma), atol=1e-12)


def test_limits_are_half_identity_and_relu() -> None:
    x = torch.linspace(-3, 3, 101)
    assert torch.allclose(CenteredSoftplus(1e-6)(x), x / 2, atol=1e-5)
    assert torch.allclose(CenteredSoftplus(1e6)(x), x.relu(), atol=1e-6)
    assert CenteredSoftplus(3.0)(torch.zeros(1)).item() == 0.0


@settings(deadline=None, max_examples=60)
@given(st.floats(-14, 14), st.floats(-50, 50))
def test_no_jump_anywhere(log_beta: float, x: float) -> None:
    beta = float(torch.tensor(log_beta).exp())
    near = torch.tensor([x, x + 1e-3 * max(1.0, abs(x)) / 64])
    low, high = CenteredSoftplus(beta)(near).tolist()
    slack = 8 * 1.2e-7 * max(abs(low), abs(high), 1e-6)
    assert -slack <= high - low <= float(near[1] - near[0]) + slack


@pytest.mark.skipif(LIBRARY is None, reason="installed without a C compiler")
@pytest.mark.parametrize("shape", [(7,), (4097,), (3, 5, 33, 65)])
def test_compiled_loops_equal_the_pytorch_operations(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(1)
    x, g, h = (torch.randn(shape, generator=generator) * 2 for _ in range(3))
    log_beta = torch.tensor(0.8)

    def derivatives(dtype: torch.dtype) -> list[torch.Tensor]:
        z, rho = x.to(dtype).requires_grad_(), log_beta.to(dtype).requires_grad_()
        upstream = g.to(dtype).requires_grad_()
        y = centered_softplus(z, rho)
        first = torch.autograd.grad(y, (z, rho), upstream, create_graph=True)
        second = torch.autograd.grad(first[0], (upstream, z, rho), h.to(dtype))
        return [y, *first, *second]

    for fast, exact in zip(derivatives(torch.float32), derivatives(torch.float64), strict=True):
        assert torch.allclose(fast.double(), exact, rtol=1e-4, atol=2e-6 * float(exact.abs().max()))


def test_memory_formats_and_views_are_kept() -> None:
    layer = CenteredSoftplus(2.0)
    x = torch.randn(2, 3, 8, 8)
    for view in (x.to(memory_format=torch.channels_last), x[:, :, ::2], x.transpose(1, 3), x.expand(2, 3, 8, 8)):
        y = layer(view.detach().requires_grad_())
        assert torch.allclose(y, composite_softplus(view, layer.beta), atol=1e-6)
        (y * view).sum().backward()
    assert layer(x.to(memory_format=torch.channels_last)).is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("beta", [1e-4, 1.0, 1e4])
def test_half_precision_stays_finite(dtype: torch.dtype, beta: float) -> None:
    layer = CenteredSoftplus(beta)
    x = torch.tensor([-6e4, -10.0, -1e-3, 0.0, 1e-3, 10.0, 6e4], dtype=dtype, requires_grad=True)
    y = layer(x)
    (slope,) = torch.autograd.grad(y.float().sum(), x, create_graph=True)
    slope.float().sum().backward()
    assert y.dtype == dtype
    assert all(bool(t.isfinite().all()) for t in (y, slope, x.grad, layer.log_beta.grad))


def test_autocast_network_has_finite_gradients() -> None:
    net = nn.Sequential(nn.Linear(8, 8), CenteredSoftplus(), nn.Linear(8, 2))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = net(torch.randn(16, 8)).float().square().mean()
    loss.backward()
    assert all(bool(p.grad.isfinite().all()) for p in net.parameters())


def test_function_transforms_agree_with_autograd() -> None:
    layer = CenteredSoftplus(3.0).double()
    x = torch.tensor([0.3, -0.2, 0.0], dtype=torch.float64)
    hessian = torch.func.hessian(lambda z: layer(z).sum())(x)
    sigma = torch.sigmoid(layer.beta * x)
    assert torch.allclose(hessian, torch.diag(layer.beta * sigma * (1 - sigma)))


def test_compile_deepcopy_and_state_dict() -> None:
    layer = CenteredSoftplus(3.0)
    twin = CenteredSoftplus(1.0)
    twin.load_state_dict(layer.state_dict())
    x = torch.randn(5, 4)
    assert torch.equal(twin(x), layer(x))
    assert torch.equal(copy.deepcopy(layer)(x), layer(x))
    traced = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(4, 4), layer))
    assert torch.allclose(traced(x), layer(traced.get_submodule("0")(x)), atol=1e-6)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    assert torch.allclose(compiled(x), layer(x), atol=1e-6)


@pytest.mark.parametrize("beta", [0.0, -1.0, float("inf"), float("nan")])
def test_impossible_beta_is_refused(beta: float) -> None:
    with pytest.raises(ValueError, match="positive"):
        CenteredSoftplus(beta)


@pytest.mark.parametrize("shift", [0.0, 0.4, -2.0])
def test_second_order_in_beta_with_a_shift(shift: float) -> None:
    """The compiled sum once took y with its shift."""
    torch.manual_seed(0)
    x, outer = torch.randn(2, 5000).double()
    found = []
    for dtype in (torch.float32, torch.float64):
        own = x.to(dtype).requires_grad_()
        log_beta = torch.tensor(0.7, dtype=dtype, requires_grad=True)
        y = _Softplus.apply(own, log_beta, shift)
        if dtype == torch.float64:
            y = composite_softplus(own, log_beta.exp()) + shift  # by autograd alone
        (slope,) = torch.autograd.grad(y.sum(), own, create_graph=True)
        found.append(torch.autograd.grad((slope * outer.to(dtype)).sum(), (own, log_beta)))
    for mine, theirs in zip(*found, strict=True):
        assert torch.allclose(mine.double(), theirs, rtol=1e-4, atol=1e-5)


def test_beta_beyond_what_a_float_holds_is_relu() -> None:
    layer = CenteredSoftplus(1e300)
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.tensor([-1.0, 0.0, 2.0], dtype=dtype, requires_grad=True)
        for y in (layer(x), torch.func.functional_call(layer, {}, (x,)), torch.vmap(layer)(x)):
            assert torch.allclose(y, x.relu())
            y.sum().backward()
    assert bool(layer.log_beta.grad.isfinite())

"""γ-BN at the edges: expanded and strided tensors, zero weights, ties, and γ beyond what a float holds."""

import copy
import itertools

import pytest
import torch
from torch import Tensor, nn

from lowcurve import LipschitzBatchNorm1d, LipschitzBatchNorm2d, convert
from lowcurve.kernels.replace import fast_double_backward
from lowcurve.layers.together import Together

SHAPES = [(64, 20), (16, 20, 1, 1), (8, 20, 5), (8, 20, 3, 3), (16, 20, 1)]
TOLERANCES = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 0.04}
LAYOUTS = {"rows": torch.contiguous_format, "channels_last": torch.channels_last}


def definition(layer: nn.Module, x: Tensor) -> Tensor:
    """min(1, γ / ‖BN‖) BN(x) in float64, from the formulas alone; `layer` is a float64 copy."""
    norm, others = layer.norm, [d for d in range(x.dim()) if d != 1]
    shape = (1, -1, *(1,) * (x.dim() - 2))
    mean, variance = norm.running_mean, norm.running_var
    gains = (variance + norm.eps).rsqrt()
    weight = torch.ones_like(gains) if norm.weight is None else norm.weight
    bias = torch.zeros_like(gains) if norm.bias is None else norm.bias
    steepest = float((weight.abs() * gains).max())
    gamma = layer.log_gamma.exp()
    factor = gamma / (weight.abs() * gains).amax() if steepest > float(gamma) else torch.ones(())
    if layer.training:
        mean, variance = x.mean(others), x.var(others, correction=0)
    hat = (x - mean.view(shape)) * (variance + norm.eps).rsqrt().view(shape)
    return factor * (weight.view(shape) * hat + bias.view(shape))


def assert_right(
    layer: nn.Module, x: Tensor, tolerance: float, twice: bool = False, scales: Together | None = None
) -> None:
    """Compare value and all gradients with those of the definition."""
    exact = copy.deepcopy(layer).double()
    if scales is not None:
        scales.renew()
    own, other = x.detach().clone().requires_grad_(), x.detach().double().requires_grad_()
    with fast_double_backward() if twice else torch.enable_grad():
        found = layer(own)
    truth = definition(exact, other)
    grad = torch.arange(x.numel()).view(x.shape).sin().to(x)
    found.backward(grad)
    truth.backward(grad.double())
    assert torch.allclose(found.double(), truth, atol=tolerance * float(truth.detach().abs().max()))
    assert torch.allclose(own.grad.double(), other.grad, atol=tolerance * (1 + float(other.grad.abs().max())))
    for mine, theirs in zip(layer.parameters(), exact.parameters(), strict=True):
        expected = torch.zeros_like(theirs) if theirs.grad is None else theirs.grad
        assert bool(mine.grad.isfinite().all())
        assert torch.allclose(mine.grad.double(), expected, atol=tolerance * (1 + float(x.numel()) ** 0.5))


def made(shape: tuple[int, ...], gamma: float, affine: bool = False) -> nn.Module:
    torch.manual_seed(0)
    layer = (LipschitzBatchNorm2d if len(shape) == 4 else LipschitzBatchNorm1d)(20, init_gamma=gamma, affine=affine)
    layer.norm.running_mean.normal_()
    layer.norm.running_var.uniform_(0.1, 2)
    return layer


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES)
def test_without_affine_part_gradients_are_right(shape: tuple[int, ...], layout: str, dtype: torch.dtype) -> None:
    """PyTorch's CPU backward read beyond the end of the expanded weight."""
    if layout == "channels_last" and len(shape) != 4:
        pytest.skip("images only")
    for training, gamma, twice in itertools.product((True, False), (0.5, 1e3), (True, False)):
        layer = made(shape, gamma).to(dtype).train(training)
        x = torch.randn(shape).to(dtype, memory_format=LAYOUTS[layout])
        assert_right(layer, x, TOLERANCES[dtype], twice)


def test_strided_statistics_and_weights() -> None:
    for affine in (False, True):
        layer = made((64, 20), 0.5, affine).eval()
        for name, buffer in list(layer.norm.named_buffers())[:2]:
            layer.norm._buffers[name] = torch.stack([buffer, buffer + 9], dim=1)[:, 0]
        if affine:
            layer.norm.weight = nn.Parameter(torch.randn(20, 3)[:, 1])
        assert_right(layer, torch.randn(64, 20), 1e-5)


def test_converted_network_without_affine_part() -> None:
    torch.manual_seed(0)
    net = (
        nn.Sequential(
            nn.Conv2d(3, 20, 3), nn.BatchNorm2d(20, affine=False), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )
        .append(nn.Linear(20, 20))
        .append(nn.BatchNorm1d(20, affine=False))
    )
    x = torch.rand(8, 3, 6, 6)
    net.train()(x)
    model, _ = convert(net.eval(), x)
    exact = copy.deepcopy(model).double()
    own, other = x.clone().requires_grad_(), x.double().requires_grad_()
    model(own).square().sum().backward()
    exact(other).square().sum().backward()
    assert torch.allclose(own.grad.double(), other.grad, atol=1e-5)


WEIGHTS = {
    "all zero": [0.0] * 20,
    "one zero": [0.0] + [1.0] * 19,
    "one nonzero": [0.0] * 19 + [-3.0],
    "ties": [2.0, -2.0] * 10,
    "mixed": [0.0, 1.0, -1.0, 1e-30] * 5,
}


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("gamma", [1e-3, 0.7, 10.0, 1e300])
def test_zero_weights_and_ties(weights: str, gamma: float) -> None:
    for training, shared, twice in itertools.product((True, False), (True, False), (True, False)):
        layer = made((8, 20, 3, 3), min(gamma, 1e30), affine=True).train(training)
        with torch.no_grad():
            layer.norm.weight.copy_(torch.tensor(WEIGHTS[weights]))
            layer.norm.bias.normal_()
            layer.norm.running_var.fill_(0.25)  # so that ties of weights are ties of slopes
            layer.log_gamma.fill_(float(torch.tensor(gamma, dtype=torch.float64).log()))
        x = torch.randn(8, 20, 3, 3)
        if gamma > 1e38:
            layer(x).sum().backward()
            assert not layer.log_gamma.grad and bool(layer.norm.weight.grad.isfinite().all())
            continue
        with Together(nn.Sequential(layer)) as scales:
            assert_right(layer, x, 2e-5, twice, scales if shared else None)


def test_gamma_equal_to_the_steepness_counts_as_large_enough() -> None:
    layer = LipschitzBatchNorm1d(3, init_gamma=1.0, eps=0.25, affine=True).eval()
    layer.norm.running_var.fill_(0.75)  # so that ‖BN‖ = 1 = γ
    assert float(layer.lipschitz()) == float(layer.gamma) == 1
    x = torch.randn(4, 3)
    layer(x).sum().backward()
    assert float(layer.log_gamma.grad) == 0
    assert torch.allclose(layer.norm.weight.grad, x.sum(0))


def test_a_single_value_per_channel_is_refused_as_pytorch_does() -> None:
    for layer in (nn.BatchNorm1d(3), LipschitzBatchNorm1d(3)):
        with fast_double_backward(), pytest.raises(ValueError, match="more than 1 value per channel"):
            layer(torch.randn(1, 3))

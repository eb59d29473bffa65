import copy

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck

from lowcurve import LipschitzBatchNorm1d, LipschitzBatchNorm2d, convert
from lowcurve.layers.together import Together
from lowcurve.observe import observing
from tests.dense import dense_jacobian


def settled(gamma: float, affine: bool = False) -> LipschitzBatchNorm2d:
    torch.manual_seed(0)
    layer = LipschitzBatchNorm2d(3, init_gamma=gamma, affine=affine)
    with torch.no_grad():
        layer.norm.running_var.copy_(torch.tensor([0.04, 1.0, 9.0]))
        layer.norm.running_mean.normal_()
        if affine:
            layer.norm.weight.copy_(torch.tensor([0.5, -4.0, 1.0]))
    return layer.eval()


@pytest.mark.parametrize("gamma", [0.5, 3.0, 1e4])
@pytest.mark.parametrize("affine", [False, True])
def test_lipschitz_is_the_exact_eval_mode_constant(gamma: float, affine: bool) -> None:
    layer = settled(gamma, affine)
    truth = torch.linalg.matrix_norm(dense_jacobian(copy.deepcopy(layer), (3, 2, 2)), 2)
    assert float(layer.lipschitz().detach()) == pytest.approx(float(truth), rel=1e-5)
    if not affine:
        assert float(layer.lipschitz().detach()) == pytest.approx(min(gamma, (0.04 + 1e-5) ** -0.5), rel=1e-5)


def test_large_gamma_is_plain_batch_norm_and_statistics_move_once() -> None:
    torch.manual_seed(0)
    ours, plain = LipschitzBatchNorm2d(4, init_gamma=1e6, affine=True), nn.BatchNorm2d(4)
    for _ in range(3):
        x = torch.randn(8, 4, 5, 5) * 3 + 1
        assert torch.allclose(ours(x), plain(x), atol=1e-6)
    for name, buffer in plain.named_buffers():
        assert torch.allclose(ours.norm.get_buffer(name), buffer, rtol=1e-6)


def test_cumulative_momentum_matches_batch_norm() -> None:
    ours, plain = LipschitzBatchNorm1d(4, init_gamma=1e6, momentum=None), nn.BatchNorm1d(4, momentum=None, affine=False)
    for _ in range(4):
        x = torch.randn(16, 4)
        assert torch.allclose(ours(x), plain(x), atol=1e-6)
    assert torch.allclose(ours.norm.running_var, plain.running_var)


def test_sync_batchnorm_conversion_keeps_the_constant_and_the_function() -> None:
    layer = settled(2.0, affine=True)
    x = torch.randn(2, 3, 4, 4)
    expected = layer(x)
    synced = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(copy.deepcopy(layer))).eval()
    assert isinstance(synced[0].norm, nn.SyncBatchNorm)
    assert float(synced[0].lipschitz()) == pytest.approx(float(layer.lipschitz()))
    assert torch.allclose(synced(x), expected, atol=1e-6)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("gamma", [1.5, 100.0])
def test_gradients_in_input_and_gamma(training: bool, gamma: float) -> None:
    layer = LipschitzBatchNorm1d(2, init_gamma=gamma, affine=True).double().train(training)
    layer.norm.running_var.copy_(torch.tensor([0.2, 2.0]))
    layer.norm.momentum = 0.0  # the factor depends on the running variances: they must stay

    def apply(x: torch.Tensor, log_gamma: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        values = {"log_gamma": log_gamma, "norm.weight": weight}
        return torch.func.functional_call(layer, values, (x,))

    x = torch.randn(5, 2, dtype=torch.float64, requires_grad=True)
    weight = torch.tensor([1.0, -2.0], dtype=torch.float64, requires_grad=True)
    log_gamma = layer.log_gamma.detach().requires_grad_()
    assert gradcheck(apply, (x, log_gamma, weight))
    assert gradgradcheck(apply, (x, log_gamma, weight), atol=1e-4)


def test_contexts_restore_everything() -> None:
    net = nn.Sequential(nn.Linear(4, 4), LipschitzBatchNorm1d(4), nn.Dropout(0.5)).train()
    net[0].weight.requires_grad_(False)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    flags = {name: p.requires_grad for name, p in net.named_parameters()}
    net[2].eval()
    modes = [m.training for m in net.modules()]
    with observing(net):
        assert not any(m.training for m in net.modules())
        net(torch.randn(3, 4))
        net.train()(torch.randn(3, 4))
    assert modes == [m.training for m in net.modules()]
    assert flags == {name: p.requires_grad for name, p in net.named_parameters()}
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    net(torch.randn(3, 4))
    assert not torch.equal(before["1.norm.running_mean"], net[1].norm.running_mean)


@pytest.mark.parametrize("gamma", [0.0, -2.0, float("inf")])
def test_impossible_gamma_is_refused(gamma: float) -> None:
    with pytest.raises(ValueError, match="positive"):
        LipschitzBatchNorm2d(3, init_gamma=gamma)


def test_shared_scales_are_what_each_layer_computes() -> None:
    torch.manual_seed(0)
    layers = [
        LipschitzBatchNorm2d(3, init_gamma=0.7),
        LipschitzBatchNorm2d(3, init_gamma=20.0, affine=True),
        LipschitzBatchNorm2d(3, init_gamma=0.5, affine=True),
    ]
    for layer in layers[1:]:
        nn.init.normal_(layer.norm.weight)
        nn.init.normal_(layer.norm.bias)
    alone = nn.Sequential(*layers, LipschitzBatchNorm2d(3, init_gamma=2.0, eps=0.1)).double()
    together = copy.deepcopy(alone)
    start = [layer.norm.running_var.clone() for layer in alone]
    inputs = torch.randn(2, 5, 3, 4, 4, dtype=torch.float64)
    with Together(together) as scales:
        scales.renew()
        sum(together(x).square().sum() for x in inputs).backward()
    for x in inputs:  # every pass scales by the variances of the start
        for layer, variance in zip(alone, start, strict=True):
            layer.norm.running_var.copy_(variance)
        alone(x).square().sum().backward()
    for mine, theirs in zip(together.parameters(), alone.parameters(), strict=True):
        assert mine.grad.abs().sum() > 0 or not theirs.grad.any()
        assert torch.allclose(mine.grad, theirs.grad, rtol=1e-12)
    assert all(layer.shared_scale is None for layer in together)


def test_shared_scales_where_channels_tie() -> None:
    """In a new layer every channel is the steepest: each gets its share of the gradient, whatever its sign."""
    layers = [LipschitzBatchNorm1d(4, init_gamma=0.5, affine=True) for _ in range(2)]
    for sign in (1.0, -1.0):
        grads = []
        for prepare in (True, False):
            model = nn.ModuleList(copy.deepcopy(layers))
            with Together(model) as scales:
                scales.renew()
                sum(sign * (layer.shared_scale if prepare else layer.scaled())[0][0] for layer in model).backward()
            grads.append([layer.norm.weight.grad for layer in model])
        assert all(torch.allclose(mine, theirs) for mine, theirs in zip(*grads, strict=True))


def test_shared_scales_of_layers_that_do_not_fit_together() -> None:
    """Without bias, in another precision: each kind is computed apart, as it would be alone."""
    layers = [LipschitzBatchNorm1d(3, init_gamma=0.7, affine=True), LipschitzBatchNorm1d(3, init_gamma=0.7).double()]
    layers[0].norm.register_parameter("bias", None)
    model = nn.ModuleList(layers)
    with Together(model) as scales:
        scales.renew()
        for layer in layers:
            for mine, theirs in zip(layer.shared_scale, layer.scaled(), strict=True):
                assert (mine is None) == (theirs is None)
                assert mine is None or torch.equal(mine, theirs)


def test_a_layer_that_is_used_twice_scales_by_the_variances_that_it_has_moved() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(3)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(3 * self.norm(x))

    torch.manual_seed(0)
    x = torch.randn(8, 3)
    model, _ = convert(Twice(), x, init_gamma=0.3)
    layer = copy.deepcopy(model.norm).train()
    assert torch.allclose(model.train()(x), layer(3 * layer(x)))

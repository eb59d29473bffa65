"""Does the spectral norm stay 1 whatever happens to the weight: training, traps, jumps, averages of models?"""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from lowcurve import spectral_norm
from lowcurve.layers import normalized as normalized_net
from lowcurve.layers.normalized import converge, normalized_layers, original, spectral_of
from lowcurve.linalg.bidiagonal import follow_together
from lowcurve.observe import observing
from lowcurve.training.machine import flushed_denormals
from tests.dense import dense_jacobian


def norm_of(layer: nn.Module) -> float:
    """The true operator norm of the normalized weight as it is read now, bias aside."""
    spectral = spectral_of(layer)
    assert spectral is not None
    weight = layer.weight.detach().double()
    dense = spectral.map.apply(weight, torch.eye(spectral.right.numel()).double().view(-1, *spectral.right.shape[1:]))
    dense = dense.flatten(1)
    gram = dense @ dense.mT if dense.shape[0] < dense.shape[1] else dense.mT @ dense
    return float(torch.linalg.eigvalsh(gram)[-1].sqrt())


def conv_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        spectral_norm(nn.Conv2d(1, 8, 3, padding=1), (6, 6)),
        nn.ReLU(),
        spectral_norm(nn.Conv2d(8, 8, 3, padding=1), (6, 6)),
        nn.ReLU(),
        spectral_norm(nn.Conv2d(8, 8, 3, stride=2, padding=1, groups=2), (6, 6)),
        nn.ReLU(),
        nn.Flatten(),
        spectral_norm(nn.Linear(72, 10)),
    )


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [spectral_norm(nn.Linear(36, 64)), nn.ReLU(), spectral_norm(nn.Linear(64, 64)), nn.ReLU()]
    return nn.Sequential(nn.Flatten(), *layers, spectral_norm(nn.Linear(64, 10)))


@pytest.fixture(params=["on a CPU", "elsewhere"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Follow as on a CPU, or as on devices that nobody asks how far they have come."""
    if request.param == "elsewhere":

        def elsewhere(*given) -> None:
            follow_together(*given[:-1], least=given[-1])

        monkeypatch.setattr(normalized_net, "follow", elsewhere)


@pytest.mark.parametrize("make", [conv_net, mlp])
@pytest.mark.parametrize(("rate", "momentum"), [(0.1, 0.0), (0.1, 0.9), (0.5, 0.9)])
def test_the_norm_stays_one_after_every_step(make, rate: float, momentum: float, device: None) -> None:
    """With one iteration per step it was 1.5."""
    net = make().train()
    optimizer = torch.optim.SGD(net.parameters(), rate, momentum=momentum)
    generator = torch.Generator().manual_seed(0)
    means = torch.rand(10, 1, 6, 6, generator=generator)
    layers = [module for _, module, _ in normalized_layers(net)]
    with flushed_denormals():
        for step in range(41):
            y = torch.randint(0, 10, (32,), generator=generator)
            x = means[y] + 0.3 * torch.randn(32, 1, 6, 6, generator=generator)
            loss = F.cross_entropy(8 * net(x), y)
            norms = [norm_of(layer) for layer in layers] if step % 4 == 0 else []
            assert all(0.998 < norm < 1.02 for norm in norms), (step, norms)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 8 == 0:  # whoever reads a weight before the next forward, in training mode
                assert all(abs(norm_of(layer) - 1) < 1e-3 for layer in layers)
    net.eval()
    assert all(abs(norm_of(layer) - 1) < 1e-3 for layer in layers)


def test_who_reads_a_weight_leaves_no_trace_in_training(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = conv_net().train(), torch.rand(4, 1, 6, 6)
    net(x).sum().backward()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
    twin = copy.deepcopy(net)
    assert abs(norm_of(net[0]) - 1) < 1e-3
    assert torch.equal(net(x), twin(x))
    monkeypatch.setattr(type(spectral_of(net[0])), "_largest", lambda *_: pytest.fail("the forward followed it"))
    assert all(layer.weight.isfinite().all() for _, layer, _ in normalized_layers(net))
    net(x).sum().backward()


def blocks(kind: str, scales: list[float]) -> tuple[nn.Module, Tensor]:
    """A layer whose map has independent blocks, and a multiplier of its weight for each block's scale."""
    torch.manual_seed(0)
    if kind == "grouped":
        return nn.Conv2d(8, 8, 3, padding=1, groups=4), torch.tensor(scales).repeat_interleave(2).view(8, 1, 1, 1)
    if kind == "depthwise":
        return nn.Conv1d(4, 4, 3, padding=1, groups=4), torch.tensor(scales).view(4, 1, 1)
    size = {"diagonal": 4, "blocks": 16, "many": 400}[kind]
    layer = nn.Linear(size, size)
    with torch.no_grad():
        ones = torch.ones(size // 4, size // 4)
        layer.weight.mul_(torch.block_diag(ones, ones, ones, ones))
    return layer, torch.tensor(scales).repeat_interleave(size // 4).view(size, 1)


@pytest.mark.parametrize("kind", ["grouped", "depthwise", "diagonal", "blocks", "many"])
def test_no_block_is_lost(kind: str, device: None) -> None:
    """After thousands of forwards the vectors' other blocks were exactly 0; one that grew later was never seen."""
    layer, small = blocks(kind, [1.0, 0.01, 0.01, 0.01])
    with torch.no_grad():
        layer.weight.mul_(small)
    spectral_norm(layer, None if isinstance(layer, nn.Linear) else 8).train()
    spectral = spectral_of(layer)
    x = torch.randn(1, *spectral.map.input_shape)
    with flushed_denormals():
        for _ in range(100):
            layer(x)
        with torch.no_grad():
            original(layer).mul_(blocks(kind, [1.0, 1.0, 1600.0, 1.0])[1])
        layer(x)
        assert norm_of(layer) < 1.02
    found = converge(layer)[""]
    assert norm_of(layer) == pytest.approx(1, abs=1e-3)
    assert found == pytest.approx(float(spectral.sigma(original(layer)).detach()), rel=1e-4)


def test_a_channel_that_becomes_a_little_steeper_than_all_others_is_seen_at_once() -> None:
    """Channels of a depthwise convolution share nothing; each is a small map, whose dense norm is the truth."""
    torch.manual_seed(0)
    layer = spectral_norm(nn.Conv2d(64, 64, 3, padding=1, groups=64, bias=False), (16, 16)).train()
    units, x = torch.eye(256).double().view(256, 1, 16, 16), torch.rand(2, 64, 16, 16)

    def norms() -> Tensor:
        images = F.conv2d(units, original(layer).detach().double(), padding=1).transpose(0, 1).flatten(2)
        return torch.linalg.eigvalsh(images @ images.mT)[:, -1].sqrt()

    for channel in range(0, 18, 3):
        original(layer).data = torch.randn(64, 1, 3, 3) * 0.1 + 0.1 * (channel % 2)
        converge(layer)
        sizes = norms()
        original(layer).data[channel] *= 1.03 * float(sizes.max() / sizes[channel])
        factor = (layer(x) / F.conv2d(x, original(layer), padding=1, groups=64)).median()
        assert float(norms().max() * factor.detach()) < 1.02


def test_old_vectors_with_dead_blocks_come_back_to_life(device: None) -> None:
    layer, _ = blocks("grouped", [1.0] * 4)
    spectral_norm(layer, 8).train()
    old = layer.state_dict()
    for name in ("left", "right"):
        old[f"parametrizations.weight.0.{name}"][:, 2:] = 0  # as those of an older version are
    layer.load_state_dict(old)
    with torch.no_grad():
        original(layer)[4:6].mul_(50)
    layer(torch.randn(1, 8, 8, 8))
    assert norm_of(layer) < 1.02


JUMPS = {
    "in place": lambda w: w.detach().mul_(torch.linspace(0.1, 9, len(w)).view(-1, *(1,) * (w.dim() - 1))),
    "by data": lambda w: w.data.mul_(torch.linspace(0.1, 9, len(w)).view(-1, *(1,) * (w.dim() - 1))),
    "other data": lambda w: setattr(w, "data", w.data.flip(0) * torch.randn(w.shape)),
    "flipped signs": lambda w: w.data[1:].neg_(),
    "transplant": lambda w: w.data.copy_(torch.randn(w.shape)),
}


@pytest.mark.parametrize("jump", JUMPS)
def test_eval_after_a_jump_has_unit_norms(jump: str) -> None:
    net = conv_net().eval()
    for _, module, _ in normalized_layers(net):
        JUMPS[jump](original(module))
    net.eval()
    assert all(norm_of(module) == pytest.approx(1, abs=1e-3) for _, module, _ in normalized_layers(net))


def test_weights_that_change_in_eval_mode() -> None:
    net, other = conv_net().eval(), conv_net().eval()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.copy_(torch.randn(parameter.shape))
    assert all(norm_of(module) == pytest.approx(1, abs=1e-3) for _, module, _ in normalized_layers(other))
    net.load_state_dict(other.state_dict())
    x = torch.rand(4, 1, 6, 6)
    assert torch.allclose(net(x), other(x), atol=1e-6)


def test_evaluation_leaves_no_trace_in_training_and_costs_nothing_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    net = conv_net().train()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
    x = torch.rand(4, 1, 6, 6)
    twin = copy.deepcopy(net)
    net.eval()(x)
    spectral = type(spectral_of(net[0]))
    monkeypatch.setattr(spectral, "_largest", lambda *_: pytest.fail("nothing has changed"))
    net.eval()(x)
    copy.deepcopy(net).eval()(x)
    monkeypatch.undo()
    with observing(net):
        net(x)
    assert torch.equal(net.train()(x), twin.train()(x))
    assert all(torch.equal(a, b) for a, b in zip(net.state_dict().values(), twin.state_dict().values(), strict=True))


@pytest.mark.parametrize("buffers", [True, False])
def test_averages_of_models_have_unit_norms(buffers: bool) -> None:
    net = conv_net().train()
    average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.5), use_buffers=buffers)
    for _ in range(3):
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.add_(torch.randn(parameter.shape))
        net(torch.rand(4, 1, 6, 6))
        average.update_parameters(net)
    average.eval()
    assert all(norm_of(module) == pytest.approx(1, abs=1e-3) for _, module, _ in normalized_layers(average))


@pytest.mark.parametrize("scale", [1e-12, 1e-7, 1e14])
def test_weights_of_any_size(scale: float, device: None) -> None:
    for layer, size in (
        (nn.Linear(300, 200), None),
        (nn.Conv2d(2, 4, 3, groups=2), (6, 6)),
        (nn.Conv2d(2, 4, 3), (6, 6)),
    ):
        with torch.no_grad():
            layer.weight.mul_(scale)
        spectral_norm(layer, size)
        assert norm_of(layer) == pytest.approx(1, abs=1e-3)
        layer.train()(torch.randn(1, *spectral_of(layer).map.input_shape))
        assert norm_of(layer) == pytest.approx(1, abs=0.02)


def test_a_weight_of_zero_learns(device: None) -> None:
    for layer, size in ((nn.Linear(6, 4), None), (nn.Conv2d(3, 4, 3), (5, 5))):
        nn.init.zeros_(layer.weight)
        spectral_norm(layer, size).train()
        x = torch.randn(2, *spectral_of(layer).map.input_shape)
        layer(x).square().sum().backward()
        layer(x).sum().backward()
        assert bool(original(layer).grad.isfinite().all())
        with torch.no_grad():
            original(layer).sub_(0.1 * original(layer).grad)
        layer(x)
        assert norm_of(layer) == pytest.approx(1, abs=0.02)


def test_a_parametrization_before_this_one_counts() -> None:
    class Skewed(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return weight * torch.linspace(0.1, 9, weight.shape[1])

    layer = nn.Linear(20, 30)
    nn.utils.parametrize.register_parametrization(layer, "weight", Skewed())
    spectral_norm(layer).train()
    layer(torch.randn(2, 20))
    assert norm_of(layer) == pytest.approx(1, abs=0.02)
    assert norm_of(layer.eval()) == pytest.approx(1, abs=1e-3)
    assert float(torch.linalg.matrix_norm(dense_jacobian(copy.deepcopy(layer), (20,)), 2)) == pytest.approx(1, abs=1e-3)

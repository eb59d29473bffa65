import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lowcurve import MODELS, CenteredSoftplus, LipschitzBatchNorm1d, LipschitzBatchNorm2d, convert, fold
from lowcurve.errors import UserError
from lowcurve.layers.normalized import spectral_of
from lowcurve.layers.rectifiers import LeakyCenteredSoftplus, SmoothClip
from lowcurve.layers.traits import constants
from lowcurve.surgery.replace import rescale_statistics
from tests.surgery.zoo import SMALL, TOKENS, VECTOR, InPlaceAliases, SharedInBlock, as_if_trained


def small_resnet(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return as_if_trained(MODELS["resnet18"](width=4, num_classes=5))


def test_a_trained_net_keeps_its_function_under_spectral_norm():
    net = small_resnet()
    low, report = convert(net, SMALL, activation=False, init_gamma=1e6)
    assert not report.factors()  # every convolution is followed by a batch norm
    torch.testing.assert_close(low(SMALL), net(SMALL), rtol=1e-4, atol=1e-6)
    low, report = convert(net, SMALL, activation=False, init_gamma=1e6, last_layer="unit")
    assert list(report.factors()) == ["13"]
    torch.testing.assert_close(low(SMALL), net(SMALL) * report.factors()["13"], rtol=1e-4, atol=1e-6)


def test_factors_are_what_layers_are_multiplied_by():
    net = MODELS["mlp"](in_channels=3, width=8, image_size=8).eval()
    low, report = convert(net, SMALL, last_layer="unit")
    layers = [name for name, module in net.named_modules() if isinstance(module, nn.Linear)]
    assert list(report.factors()) == layers
    for name in layers:
        before, after = net.get_submodule(name), low.get_submodule(name)
        x = torch.randn(4, before.in_features)
        torch.testing.assert_close(after(x), before(x) * report.factors()[name])


def test_a_batch_norm_steeper_than_gamma_is_reported():
    net = nn.Sequential(nn.BatchNorm1d(3)).eval()
    net[0].running_var.copy_(torch.tensor([1.0, 0.01, 4.0]))
    low, report = convert(net, torch.rand(2, 3), init_gamma=2.0)
    x = torch.rand(5, 3)
    torch.testing.assert_close(low(x), net(x) * report.factors()["0"])
    assert report.factors()["0"] == pytest.approx(0.2, rel=1e-3)  # γ / slope = 2 / (1 / 0.1)
    assert "slope 9.99" in report.replaced[0].note


@pytest.mark.parametrize("affine", [True, False])
def test_rescaled_statistics_mind_epsilon(affine):
    norm = nn.BatchNorm1d(4, eps=1e-3, affine=affine).double().eval()
    norm.running_mean.copy_(torch.tensor([0.5, -1.0, 2.0, 0.0]))
    norm.running_var.copy_(torch.tensor([1.0, 1e-2, 0.5, 1e-4]))
    x = torch.randn(6, 4, dtype=torch.float64)
    before = norm(x)
    rescale_statistics(norm, 3.0)
    exact = slice(0, 4) if affine else slice(0, 3)  # (1e-4 + ε) / 9 < ε: only an affine weight can make up for it
    torch.testing.assert_close(norm(x / 3)[:, exact], before[:, exact])
    assert (norm.running_var >= 0).all()


def test_the_original_is_not_changed():
    net = SharedInBlock()
    state, classes = copy.deepcopy(net.state_dict()), [type(m) for m in net.modules()]
    convert(net, SMALL)
    assert all(torch.equal(value, state[key]) for key, value in net.state_dict().items())
    assert [type(m) for m in net.modules()] == classes
    assert net.relu.inplace and net.training
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())


def test_conversion_is_deterministic_and_draws_no_random_numbers():
    net = small_resnet()
    state = torch.get_rng_state()
    first, second = convert(net, SMALL)[0], convert(net, SMALL)[0]
    assert torch.equal(torch.get_rng_state(), state)
    assert all(
        torch.equal(a, b) for a, b in zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    )


def test_state_dict_round_trip_between_conversions():
    first, _ = convert(small_resnet(0), SMALL)
    second, _ = convert(small_resnet(1), SMALL[:1])
    second.load_state_dict(first.state_dict())
    assert torch.equal(first(SMALL), second(SMALL))


def test_precision_and_modes_are_kept():
    net = small_resnet().double().train()
    net[1].eval()  # a frozen batch norm
    low, _ = convert(net, SMALL.double())
    assert {p.dtype for p in low.parameters()} == {torch.float64}
    assert not low[1].training and not low[1].norm.training
    assert low[2].training and low[3].body[1].training and low.training


def test_frozen_parameters_stay_frozen():
    net = small_resnet().requires_grad_(False)
    low, _ = convert(net, SMALL)
    trained = {name for name, p in low.named_parameters() if p.requires_grad}
    assert trained and all(name.endswith(("log_beta", "log_gamma")) for name in trained)


def test_switches():
    net = small_resnet()
    kinds = {
        "activation": CenteredSoftplus,
        "batchnorm": LipschitzBatchNorm2d,
        "spectral": nn.utils.parametrize.ParametrizationList,
    }
    for chosen in kinds:
        low, report = convert(net, SMALL, **{switch: switch == chosen for switch in kinds})
        found = {switch for switch, kind in kinds.items() if any(isinstance(m, kind) for m in low.modules())}
        assert found == {chosen}
        assert report.replaced
    same, report = convert(net, SMALL, activation=False, batchnorm=False, spectral=False)
    assert not report.replaced and torch.equal(same(SMALL), net(SMALL))


def test_skipped_modules_are_left_with_all_that_is_inside():
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), inner, nn.Linear(4, 2))
    low, report = convert(net, torch.zeros(1, 3), skip=("2", "3"))
    assert report.summary() == "1 Linear -> spectral norm, 1 ReLU -> CenteredSoftplus; 2 left"
    assert [(row[0], row[3]) for row in report.rows() if row[2] == "left"] == [
        ("2", "skipped, as asked"),
        ("3", "skipped, as asked"),
    ]
    assert type(low[2][1]) is nn.ReLU
    assert torch.equal(low[3].weight, net[3].weight)
    with pytest.raises(UserError, match="does not have, '4'"):
        convert(net, torch.zeros(1, 3), skip=("4",))
    with pytest.raises(UserError, match="several names"):
        convert(net, torch.zeros(1, 3), skip="2")
    with pytest.raises(UserError, match="skip the module around it"):
        convert(net, torch.zeros(1, 3), skip=("1",))
    assert convert(net, torch.zeros(1, 3), skip=(name for name in ("3",)))[1].summary().endswith("1 left")


def test_skipped_modules_that_are_registered_twice():
    layer, act = nn.Linear(3, 3), nn.ReLU()
    twice = nn.Sequential(layer, nn.ReLU(), layer)
    low, _ = convert(twice, torch.zeros(1, 3), skip=("2",))  # its second name
    assert torch.equal(low[0].weight, layer.weight) and low[0] is low[2]
    with pytest.raises(UserError, match="inside and outside"):
        convert(nn.Sequential(nn.Sequential(layer, act), act), torch.zeros(1, 3), skip=("0",))


def test_a_layer_that_would_be_refused_may_be_skipped():
    net = nn.Sequential(nn.Linear(3, 4), nn.PReLU(), nn.Linear(4, 2))
    with pytest.raises(UserError, match="PReLU"):
        convert(net, torch.zeros(1, 3))
    low, _ = convert(net, torch.zeros(1, 3), skip=("1",))
    assert type(low[1]) is nn.PReLU


def test_beta_and_gamma_start_where_they_should():
    low, _ = convert(small_resnet(), SMALL, init_beta=2.5, init_gamma=4.0)
    assert all(float(m.beta.detach()) == pytest.approx(2.5) for m in low.modules() if isinstance(m, CenteredSoftplus))
    assert all(
        float(m.gamma.detach()) == pytest.approx(4.0) for m in low.modules() if isinstance(m, LipschitzBatchNorm2d)
    )


def test_converting_twice_changes_nothing():
    once, _ = convert(small_resnet(), SMALL)
    twice, report = convert(once, SMALL)
    assert not report.replaced and [change.name for change in report.left] == ["13"]
    assert torch.equal(once(SMALL), twice(SMALL))


def test_conversion_in_two_steps_keeps_the_function_too():
    net = small_resnet()
    half, _ = convert(net, SMALL, activation=False, spectral=False, init_gamma=1e6)
    low, report = convert(half, SMALL, activation=False, batchnorm=False)
    torch.testing.assert_close(low(SMALL), net(SMALL), rtol=1e-4, atol=1e-6)
    assert not report.factors()


def test_sync_batch_norm_is_kept_inside():
    net = nn.SyncBatchNorm.convert_sync_batchnorm(small_resnet())
    low, report = convert(net, SMALL)
    assert report.counts()["SyncBatchNorm", "LipschitzBatchNorm2d"] == 20
    assert isinstance(low[1].norm, nn.SyncBatchNorm)


def test_examples_may_be_tuples_and_dicts():
    class TwoInputs(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(6, 4), nn.Linear(6, 4)

        def forward(self, x, other):
            return F.relu(self.a(x)) - F.relu(self.b(other))

    for example in [(VECTOR, VECTOR), {"x": VECTOR, "other": VECTOR}]:
        low, report = convert(TwoInputs(), example)
        assert report.counts() == {("Linear", "spectral norm"): 2, ("F.relu", "CenteredSoftplus"): 2}
        assert low(VECTOR, other=VECTOR).shape == (4, 4)


def test_a_single_layer_is_a_model_too():
    assert isinstance(convert(nn.ReLU(), VECTOR)[0], CenteredSoftplus)
    assert isinstance(convert(nn.BatchNorm1d(6), VECTOR)[0], LipschitzBatchNorm1d)


def test_what_is_called_only_in_training_is_converted_too():
    class Auxiliary(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head, self.extra = (
                nn.Linear(6, 6),
                nn.Linear(6, 5),
                nn.Sequential(nn.ReLU(), nn.Linear(6, 5)),
            )

        def forward(self, x):
            x = self.body(x)
            return (self.head(x), self.extra(x)) if self.training else self.head(x)

    low, report = convert(Auxiliary(), VECTOR, last_layer="unit")
    assert isinstance(low.extra[0], CenteredSoftplus) and not report.left


def test_what_is_never_called_is_left_and_reported():
    class Unused(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.spare = nn.Linear(6, 5), nn.Sequential(nn.Conv2d(3, 3, 3), nn.ReLU())

        def forward(self, x):
            return self.used(x)

    low, report = convert(Unused(), VECTOR, last_layer="unit")
    assert [(c.name, c.note) for c in report.left] == [(f"spare.{i}", "not reached by the example input") for i in "01"]
    assert isinstance(low.spare[1], nn.ReLU)


def test_attributes_of_a_rewritten_forward_survive():
    low, _ = convert(SharedInBlock(), SMALL)
    assert low.config == {"depth": 2}
    assert copy.deepcopy(low).config == {"depth": 2}
    torch.testing.assert_close(copy.deepcopy(low)(SMALL), low(SMALL))


def test_dropout_in_a_rewritten_forward_still_follows_the_mode():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(6, 200)

        def forward(self, x):
            return F.dropout(F.relu(self.fc(x)), 0.5, self.training)

    low, _ = convert(Net(), VECTOR)
    assert (low.train()(VECTOR) == 0).float().mean() > 0.3
    assert (low.eval()(VECTOR) == 0).float().mean() < 0.01


def test_in_place_changes_of_a_tensor_that_is_read_again():
    net = InPlaceAliases().eval()
    low, _ = convert(net, VECTOR, spectral=False, init_beta=1e6)
    x = torch.randn(8, 6)
    torch.testing.assert_close(low(x), net(x), atol=1e-4, rtol=0)


def test_a_shared_convolution_is_normalized_at_its_largest_input():
    class Pyramid(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 3, padding=1)

        def forward(self, x):
            return self.conv(x).mean((2, 3)) + self.conv(F.avg_pool2d(x, 2)).mean((2, 3))

    low, _ = convert(Pyramid(), SMALL)
    assert low.conv.parametrizations.weight[0].map.input_shape == (3, 8, 8)


@pytest.mark.parametrize("slope", [0.0, 0.2, 1.0])
def test_leaky_softplus_tends_to_leaky_relu(slope):
    x = torch.linspace(-3, 3, 101, dtype=torch.float64)
    layer = LeakyCenteredSoftplus(slope, init_beta=1e7).double()
    torch.testing.assert_close(layer(x), F.leaky_relu(x, slope), atol=1e-6, rtol=0)


@pytest.mark.parametrize(("low", "high"), [(0.0, 6.0), (-1.0, 1.0)])
def test_smooth_clip_tends_to_hardtanh_and_stays_inside(low, high):
    x = torch.linspace(-9, 9, 101, dtype=torch.float64)
    torch.testing.assert_close(SmoothClip(low, high, 1e7).double()(x), F.hardtanh(x, low, high), atol=1e-6, rtol=0)
    soft = SmoothClip(low, high, 0.7).double()(x)
    assert low < soft.min() and soft.max() < high


@pytest.mark.parametrize(
    "layer", [LeakyCenteredSoftplus(0.2, 3.0), SmoothClip(0.0, 6.0, 3.0), SmoothClip(-1.0, 1.0, 3.0)]
)
def test_constants_of_the_rectifiers_by_differentiation(layer):
    known = constants(layer.double().requires_grad_(False))
    x = torch.linspace(-9, 9, 4001, dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(layer(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert first.min() >= 0 and 0.8 * known.lipschitz < first.max() <= known.lipschitz
    assert 0.9 * known.curvature < second.abs().max() <= known.curvature * (1 + 1e-9)
    assert not known.convex or second.min() >= 0


def test_a_gate_written_with_relu6_stays_a_gate():
    class HardSwish(nn.Module):
        def forward(self, x):
            return x * F.relu6(x + 3.0) / 6.0

    low, _ = convert(HardSwish(), VECTOR)
    x = torch.linspace(-20, 20, 81)
    assert (low(x) - F.hardswish(x)).abs().max() < 0.5  # and not x² / 6
    assert convert(HardSwish(), VECTOR)[1].replaced[0].was == "F.relu6"


def test_the_fused_path_of_an_encoder_layer_is_not_taken():
    layer = nn.TransformerEncoderLayer(8, 2, 16, activation=nn.GELU(), batch_first=True).eval()
    low, _ = convert(layer, TOKENS, spectral=False)  # hooks of a normalized layer would rule it out anyway
    by_hand = low.norm2(
        (h := low.norm1(TOKENS + low.self_attn(TOKENS, TOKENS, TOKENS)[0]))
        + low.linear2(low.activation(low.linear1(h)))
    )
    with torch.no_grad():  # without gradients PyTorch would use its fused kernel, which knows ReLU and GELU only
        torch.testing.assert_close(low(TOKENS), by_hand)


def test_asking_for_a_shape_does_not_hide_the_batch_norm_that_follows():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

        def forward(self, x):
            x = self.conv(x)
            return self.norm(x).mean((2, 3)) * x.shape[1]

    net = as_if_trained(Net())
    low, report = convert(net, SMALL, init_gamma=1e6)
    assert not report.factors()
    torch.testing.assert_close(low(SMALL), net(SMALL), rtol=1e-4, atol=1e-5)


def test_a_second_reader_keeps_the_statistics_as_they_are():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

        def forward(self, x):
            x = self.conv(x)
            return (self.norm(x) + x).mean((2, 3))

    net = as_if_trained(Net())
    low, report = convert(net, SMALL)
    assert list(report.factors()) == ["conv"]
    assert torch.equal(low.norm.norm.running_var, net.norm.running_var)


def test_an_attribute_that_is_a_function_beside_a_shared_module():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.relu, self.act = nn.Linear(6, 6), nn.ReLU(), F.elu

        def forward(self, x):
            return self.act(self.relu(self.fc(self.relu(self.fc(x)))))

    low, _ = convert(Net(), VECTOR)
    assert sum(isinstance(module, CenteredSoftplus) for module in low.modules()) == 3


def test_batch_norms_keep_their_precision():
    net = nn.Sequential(nn.Conv2d(3, 4, 3).bfloat16(), nn.BatchNorm2d(4)).eval()
    low, _ = convert(net, SMALL.bfloat16(), spectral=False)
    assert low[1].norm.running_var.dtype == low[1].log_gamma.dtype == torch.float32


def test_report_prints_as_a_table():
    _, report = convert(nn.Sequential(nn.Linear(6, 4), nn.GELU(), nn.LayerNorm(4), nn.Linear(4, 2)), VECTOR)
    lines = str(report).splitlines()
    assert lines[0] == "1 Linear -> spectral norm, 1 GELU -> CenteredSoftplus; 2 left"
    assert lines[2].split() == ["where", "was", "now", "note"]
    assert [line.split()[0] for line in lines[4:]] == ["0", "1", "2", "3"]
    assert "tends to ReLU" in lines[5] and "normalizes each sample" in lines[6] and "scale" in lines[7]


class Ends(nn.Module):
    """A linear layer and what comes after it."""

    def __init__(self, end):
        super().__init__()
        self.body, self.head, self.end = nn.Linear(6, 6), nn.Linear(6, 5), end

    def forward(self, x):
        return self.end(self, F.relu(self.body(x)))


FREE = {
    "plain": lambda net, h: net.head(h),
    "log-probabilities": lambda net, h: F.log_softmax(net.head(h), 1),
    "temperature": lambda net, h: net.head(h) / 0.5,
    "moved": lambda net, h: net.head(h).reshape(-1, 5, 1).squeeze(-1),
    "dropout": lambda net, h: F.dropout(net.head(h), 0.1, net.training),
    "an object": lambda net, h: {"hidden": h, "logits": net.head(h)},
    "two heads": lambda net, h: (net.head(h) + net.head.bias) * 2,
}
NOT_FREE = {
    "activation": lambda net, h: F.relu(net.head(h)),
    "twice": lambda net, h: net.head(h) + net.head(2 * h),
    "with features": lambda net, h: net.head(h) + h[:, :5],
    "no linear end": lambda net, h: net.head(h).square(),
}


@pytest.mark.parametrize("name", [*FREE, *NOT_FREE])
def test_the_last_layer_is_found_by_what_becomes_of_its_output(name):
    low, report = convert(Ends({**FREE, **NOT_FREE}[name]).eval(), VECTOR)
    left = [change.name for change in report.left if change.note.startswith("last layer")]
    assert left == (["head"] if name in FREE else [])
    assert (spectral_of(low.head) is None) == (name in FREE)
    assert spectral_of(convert(Ends(FREE["plain"]), VECTOR, last_layer="unit")[0].head) is not None


def test_a_last_layer_is_free_or_of_unit_norm():
    with pytest.raises(UserError, match="last layer"):
        convert(nn.Linear(6, 5), VECTOR, last_layer="none")


def test_folding_leaves_the_converted_model_alone():
    low, _ = convert(small_resnet(), SMALL)
    before = low(SMALL)
    fold(low)
    assert torch.equal(low(SMALL), before)
    assert nn.utils.parametrize.is_parametrized(low[0])


@torch.no_grad()
def test_the_factor_of_a_layer_before_a_clipping_batch_norm_is_reported() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), LipschitzBatchNorm1d(4, init_gamma=0.5)).eval()
    net[0].weight.mul_(3)
    x = torch.rand(5, 3)
    model, report = convert(net, x)
    assert torch.allclose(model(x), net(x) * report.factors()["0"], atol=1e-5)


def test_a_model_without_parameters_is_converted_in_the_precision_of_its_example() -> None:
    model, _ = convert(nn.Sequential(nn.Hardtanh()), torch.rand(2, 3, dtype=torch.float64))
    assert all(parameter.dtype is torch.float64 for parameter in model.parameters())


@pytest.mark.parametrize("size", [1.0, 1e-8, 0.0])
@pytest.mark.parametrize("act", [nn.ReLU, nn.ReLU6, nn.ELU])
def test_an_activation_that_nobody_assigns_is_kept_whatever_weights_and_example_are(act, size):
    """Outputs told that it was lost, and those of tiny or zero weights and of an example of zeros did not."""

    class Unassigned(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.act, self.head = nn.Linear(6, 6), act(inplace=True), nn.Linear(6, 5, bias=False)

        def forward(self, x):
            h = self.body(x)
            self.act(h)
            return self.head(h)

    net = Unassigned().double().eval()
    net.head.weight.data.mul_(size)
    low, _ = convert(net, torch.zeros(2, 6).double(), init_beta=1e30, spectral=False)
    net.head.weight.data.normal_()
    low.head.weight.data.copy_(net.head.weight)
    x = torch.randn(9, 6).double()
    with torch.no_grad():
        expected = F.relu(net.body(x)) @ net.head.weight.T if act is nn.ELU else net(x)
        torch.testing.assert_close(low(x), expected)

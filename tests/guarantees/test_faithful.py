"""What a trace of a model does not show: hooks, replaced methods, memory that is shared and written to. Refused."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.nn.utils import parametrizations, parametrize, prune

import lowcurve as lc
from lowcurve.errors import UserError

X, Y = torch.rand(3, 4), torch.tensor([0, 1, 2])


class Net(nn.Module):
    """A small network whose forward is given."""

    def __init__(self, forward) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.elu = nn.Linear(4, 5), nn.Linear(5, 3), nn.ELU(5.0, inplace=True)
        self.same, self.flat, self.drop = nn.Identity(), nn.Flatten(), nn.Dropout(0.5, inplace=True)
        self.norm = nn.BatchNorm1d(5)
        self.register_buffer("factor", torch.tensor(2.0))
        self.calls, self.body = 0, forward

    def forward(self, x):
        return self.body(self, x)


def plain():
    return nn.Sequential(nn.Linear(4, 5), nn.Softplus(), nn.Linear(5, 3))


def refused(model, match, x=X):
    for call in (lambda: lc.certify(model, x, Y), lambda: lc.bounds(model, tuple(x.shape[1:]))):
        with pytest.raises(UserError, match=match):
            call()


@pytest.mark.parametrize("where", ["", "1", "0"])
@pytest.mark.parametrize("kind", ["register_forward_hook", "register_forward_pre_hook"])
def test_hooks_are_refused_wherever_they_are(where, kind):
    model = plain()
    getattr(model.get_submodule(where), kind)(lambda module, *values: None)
    refused(model, "has a forward hook")


@pytest.mark.parametrize("register", [register_module_forward_hook, register_module_forward_pre_hook])
def test_global_hooks_are_refused(register):
    handle = register(lambda module, *values: None)
    try:
        refused(plain(), "global forward hook")
    finally:
        handle.remove()


def test_legacy_hooks_that_compute_weights_are_refused():
    for wrap in (nn.utils.weight_norm, nn.utils.spectral_norm, lambda m: prune.l1_unstructured(m, "weight", 0.5)):
        refused(nn.Sequential(wrap(nn.Linear(4, 3))), "has a forward hook")


def test_replaced_methods_calls_and_compilers_are_refused():
    model = plain()
    model[1].forward = lambda x: x.round()
    refused(model, "'forward' replaced on the instance")

    class Rounding(nn.Sequential):
        def __call__(self, x):
            return super().__call__(x.round())

    refused(Rounding(nn.Linear(4, 3)), "__call__ of its own")
    refused(nn.Sequential(Rounding(nn.Linear(4, 3))), "__call__ of its own")
    model = plain()
    model.compile(backend="eager")
    refused(model, "is compiled")


def test_what_stays_in_training_mode_is_refused():
    class Restless(nn.Dropout):
        def train(self, mode=True):
            return super().train(True)

    refused(nn.Sequential(nn.Linear(4, 3), Restless()), "in training mode")


def in_place(forward):
    return pytest.param(forward, id=str(forward.__code__.co_firstlineno))


@pytest.mark.parametrize(
    "forward",
    [
        in_place(lambda s, x: (h := s.first(x), s.elu(h), s.last(h))[-1]),
        in_place(lambda s, x: (h := s.first(x), s.last(s.elu(h) + h))[-1]),
        in_place(lambda s, x: (h := s.first(x), h.view(-1, 5).relu_(), s.last(h))[-1]),
        in_place(lambda s, x: (h := s.first(x), h.add_(1.0), s.last(h))[-1]),
        in_place(lambda s, x: (h := s.first(x), h.mul_(2).relu_(), s.last(h))[-1]),
        in_place(lambda s, x: (h := s.first(x), g := s.flat(h), F.relu(h, inplace=True), s.last(g))[-1]),
        in_place(lambda s, x: (h := s.first(x), g := s.same(h), F.elu(g, 3.0, True), s.last(h))[-1]),
        in_place(lambda s, x: (h := s.first(x), torch.relu_(s.drop(h)), s.last(h))[-1]),
        in_place(lambda s, x: (h := s.first(x), F.leaky_relu_(h, 0.5), s.last(h))[-1]),
        in_place(lambda s, x: (h := s.first(x), h.__iadd__(1.0), s.last(h))[-1]),
        in_place(lambda s, x: (h := s.first(x), h.copy_(2 * h), s.last(h))[-1]),
        in_place(lambda s, x: (x.mul_(2.0), s.last(s.first(x)))[-1]),
        in_place(lambda s, x: (s.factor.add_(1.0), s.last(s.first(x)))[-1]),
        in_place(lambda s, x: (s.norm.running_mean.add_(1.0), s.last(s.norm(s.first(x))))[-1]),
        in_place(lambda s, x: (h := s.first(x), torch.add(h, 1.0, out=h), s.last(h))[-1]),
        in_place(lambda s, x: (h := s.first(x), h.data.mul_(2), s.last(h))[-1]),
    ],
)
def test_memory_that_is_overwritten_and_read_again_is_refused(forward):
    refused(Net(forward).eval(), "in place|cannot bound this model|torch.fx can trace")


def assigned(s, x):
    h = s.first(x)
    g = h
    g -= 1.0
    return s.last(h)


def test_augmented_assignments_are_seen_as_what_they_are():
    refused(Net(assigned).eval(), "isub works in place and last reads")


def usual(s, x):
    h = s.elu(s.first(x))
    h += 1.0
    h = s.drop(h).relu_()
    h *= 2.0
    return s.last(F.relu(h, inplace=True))


def test_memory_that_is_overwritten_and_not_read_again_is_fine():
    model = Net(usual).eval()
    x = X.clone()
    assert float(lc.certify(model, X, model(X.clone()).argmax(1)).radius.max()) > 0
    first = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 3))
    assert lc.certify(first, X - 0.5, first(X - 0.5).argmax(1)).correct.all()
    assert torch.equal(X, x)


def test_logits_may_come_in_a_mapping():
    model, named = Net(lambda s, x: s.last(s.first(x))), Net(lambda s, x: {"logits": s.last(s.first(x))})
    labels = model(X).argmax(1)
    torch.testing.assert_close(
        lc.certify(named, X, labels).radius, lc.certify(model, X, labels).radius, rtol=1e-4, atol=0
    )


def counting(s, x):
    s.calls += 1
    return s.last(s.first(x)) * (1 + 1e-6 * s.calls)


def branching(s, x):
    return s.last(s.first(x)) if next(s.parameters()).dtype == torch.float32 else s.first(x)[:, :3]


@pytest.mark.parametrize(
    "forward",
    [
        in_place(counting),
        in_place(branching),
        in_place(lambda s, x: s.last(s.first(x)) * float(s.factor)),
        in_place(lambda s, x: s.last(s.first(x) + x.size(1))),
        in_place(lambda s, x: s.last(s.first(x).view(torch.int32).view(torch.float32))),
        in_place(lambda s, x: s.last(s.first(x)) + torch.rand(3)),
        in_place(lambda s, x: torch.cat(s.first(x).chunk(5, 1)[:3], 1)),
        in_place(lambda s, x: s.last(F.dropout(s.first(x)))),
        in_place(lambda s, x: s.last(s.first(x)) / 0),
        in_place(lambda s, x: torch.div(s.last(s.first(x)), 0.1, rounding_mode="floor")),
        in_place(lambda s, x: torch.add(s.last(s.first(x)), 1.0, alpha=3)),
    ],
)
def test_what_is_not_understood_is_refused(forward):
    refused(Net(forward).eval(), "expected|cannot bound this model")


@pytest.mark.parametrize("scale", [1e-4, 1.0])
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_the_comparison_is_strict_at_every_scale_and_offset(scale, offset):
    """A change of 1e-6 of the logits' spread is seen, however small or shifted the logits are."""

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.extra = plain(), 0.0

        def forward(self, x):
            return self.inner(x) * (scale * (1 + self.extra)) + offset

        def double(self):  # what torch.fx saw is not what runs later
            self.extra = 1e-6
            return super().double()

    refused(Scaled(), "reproduce the model's logits")


def test_parametrizations_are_taken_at_their_value():
    class Half(nn.Module):
        def forward(self, weight):
            return weight / 2

    class Random(nn.Module):
        def forward(self, weight):
            return weight + torch.randn_like(weight)

    halved, double = nn.Linear(4, 3), nn.Linear(4, 3)
    double.load_state_dict({"weight": halved.weight / 2, "bias": halved.bias})
    parametrize.register_parametrization(halved, "weight", Half())
    before = copy.deepcopy(halved.state_dict())
    assert lc.bounds(halved, (4,)).lipschitz.value == lc.bounds(double, (4,)).lipschitz.value
    assert all(torch.equal(value, before[key]) for key, value in halved.state_dict().items())
    assert torch.equal(halved.weight, double.weight)
    for wrap in (parametrizations.weight_norm, parametrizations.spectral_norm, parametrizations.orthogonal):
        model = nn.Sequential(wrap(nn.Linear(4, 3)))
        assert float(lc.certify(model, X, model(X).argmax(1)).radius.max()) > 0
    noisy = nn.Linear(4, 3)
    parametrize.register_parametrization(noisy, "weight", Random())
    refused(noisy, "random ones")


def test_numbers_that_are_none_are_refused():
    for value in (torch.nan, torch.inf):
        model = plain()
        model[0].weight.data[0, 0] = value
        refused(model, "finite")
    norm = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).eval()
    norm[1].running_var.fill_(-1.0)
    refused(norm, "negative running variance")


def test_a_subclass_of_a_layer_is_not_taken_for_the_layer():
    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    class Softer(nn.AvgPool1d):
        def forward(self, x):
            return super().forward(x).exp()

    refused(nn.Sequential(Doubled(4, 3)), "cannot bound this model")
    refused(nn.Sequential(Softer(1), nn.Linear(4, 3)), "cannot bound this model")


@pytest.mark.parametrize(
    "layer",
    [
        nn.Softplus(threshold=0.0), nn.Softplus(threshold=5.0), nn.Softplus(threshold=-3.0), nn.Softplus(threshold=1e3),
        nn.Softplus(threshold=torch.nan), nn.Softplus(beta=-1.0), nn.Softplus(beta=0.0), nn.Softplus(beta=torch.nan),
        nn.Softplus(beta=torch.inf), nn.LeakyReLU(torch.nan), nn.LeakyReLU(torch.inf), nn.ELU(torch.nan),
        nn.ELU(torch.inf), nn.Hardshrink(), nn.Threshold(0.1, 20.0), nn.RReLU(), nn.PReLU(init=-3.0), nn.GLU(),
        nn.Softmax(1), nn.LayerNorm(4), nn.Hardswish(), nn.AlphaDropout(), nn.Softmin(1),
    ],
    ids=str,
)  # fmt: skip
def test_activations_without_constants_are_refused(layer):
    refused(nn.Sequential(nn.Linear(4, 4), layer, nn.LazyLinear(3))[:2], "cannot bound this model")


@pytest.mark.parametrize(
    "call",
    [
        lambda x: F.softplus(x, 1.0, 0.0),
        lambda x: F.softplus(x, beta=-1.0),
        lambda x: F.softplus(x, threshold=2),
        lambda x: F.elu(x, torch.nan),
        lambda x: F.leaky_relu(x, negative_slope=torch.inf),
        lambda x: F.rrelu(x, training=True),
        lambda x: F.threshold(x, 0.1, 20.0),
        lambda x: F.hardshrink(x),
    ],
)
def test_functions_without_constants_are_refused(call):
    refused(Net(lambda s, x: s.last(call(s.first(x)))), "expected|cannot bound this model")

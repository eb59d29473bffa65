"""What a conversion keeps: hooks of every kind, containers and their indexing, attributes, methods, the class."""

import copy
import io
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lowcurve as lc
from lowcurve.errors import UserError


class Rewritten(nn.Module):
    """A forward with functional and repeated activations, and items of containers called one by one."""

    def __init__(self) -> None:
        super().__init__()
        shared = nn.ReLU()
        self.layers = nn.ModuleList([nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6), shared, nn.Linear(6, 6), shared])
        self.heads = nn.ModuleDict({"act": nn.LeakyReLU(0.2), "out": nn.Linear(6, 3)})
        self.stem = nn.Sequential(nn.Linear(6, 6), nn.ReLU())
        self.act = nn.ReLU()
        self.unused = nn.Linear(2, 2)
        self.config = {"width": 6}

    def embed(self, x):
        return F.relu(self.act(self.stem(x)) - 0.1)

    def describe(self):
        return f"width {self.config['width']}"

    def predict(self, x):
        return self(x).argmax(1)

    def forward(self, x):
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.heads["out"](self.heads["act"](self.act(x)))


X = torch.rand(5, 6)


def converted(beta: float = 1e6) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    net = Rewritten().eval()
    return net, lc.convert(net, X, spectral=False, init_beta=beta)[0].eval()


def test_containers_attributes_methods_and_the_class_stay() -> None:
    net, low = converted()
    assert torch.allclose(low(X), net(X), atol=1e-4)
    assert isinstance(low, Rewritten) and isinstance(low.layers, nn.ModuleList) and len(low.layers) == 6
    assert torch.equal(low.layers[2].weight, net.layers[2].weight) and low.layers[-2] is low.layers[4]
    assert isinstance(low.heads["act"], nn.Module) and list(low.heads) == ["act", "out"]
    assert low.describe() == "width 6" and torch.equal(low.predict(X), net.predict(X))
    assert low.unused is not None
    for place in (low.layers[1], low.layers[3], low.layers[5], low.stem[1]):
        assert type(place).__name__ == "CenteredSoftplus"
    assert low.layers[3] is not low.layers[5]
    assert not any(isinstance(part, nn.ReLU | nn.LeakyReLU) for part in low.modules())


def test_every_learned_beta_is_used() -> None:
    low = converted(5.0)[1]
    low(X).sum().backward()
    betas = [p for name, p in low.named_parameters() if name.endswith("log_beta")]
    assert len(betas) == 8 and all(p.grad is not None for p in betas)


def test_a_method_inside_the_old_forward_is_refused() -> None:
    with pytest.raises(UserError, match=r"Rewritten.embed still has the activations"):
        converted()[1].embed(X)


def test_copies_pickles_and_saved_models() -> None:
    _, low = converted(5.0)
    truth = low(X)
    file = io.BytesIO()
    torch.save(low, file)
    file.seek(0)
    again = [copy.deepcopy(low), pickle.loads(pickle.dumps(low)), torch.load(file, weights_only=False)]
    again += [copy.deepcopy(again[1]), lc.fold(low), lc.fold(again[1])]
    for other in again:
        assert torch.allclose(other(X), truth, atol=1e-6) and other.config == {"width": 6}
    assert isinstance(again[1].layers, nn.ModuleList) and isinstance(again[1], Rewritten)
    again[0].load_state_dict(low.state_dict())


def test_a_converted_copy_converts_again() -> None:
    _, low = converted(5.0)
    twice, report = lc.convert(low, X, spectral=False)
    assert torch.equal(twice(X), low(X)) and not report.replaced


def double(module, inputs, output):
    return 2 * output


class Small(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.conv, self.norm, self.act = nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU()
        self.how = how

    def forward(self, x):
        y = self.norm(self.conv(x))
        return (self.act(y) if self.how == "module" else F.relu(y)).flatten(1)


@pytest.mark.parametrize("part", ["", "conv", "norm", "act"])
@pytest.mark.parametrize("how", ["module", "function"])
def test_hooks_go_with_what_is_replaced(part: str, how: str) -> None:
    if part == "act" and how == "function":
        return
    x = torch.rand(3, 1, 5, 5)
    net = Small(how).eval()
    calls: list[str] = []
    target = net.get_submodule(part)
    target.register_forward_hook(double)
    target.register_forward_pre_hook(lambda m, args, kwargs: calls.append("pre"), with_kwargs=True)
    target.register_forward_hook(
        lambda m, args, kwargs, out: calls.append("always"), with_kwargs=True, always_call=True
    )
    target.register_full_backward_hook(lambda m, before, after: calls.append("backward"))
    target.register_full_backward_pre_hook(lambda m, grads: calls.append("backward pre"))
    target.register_state_dict_post_hook(lambda m, state, prefix, meta: calls.append("state"))
    target.register_load_state_dict_post_hook(lambda m, keys: calls.append("load"))
    low, _ = lc.convert(net, x, spectral=False, init_beta=1e6, init_gamma=1e6)
    assert torch.allclose(low(x), net(x), atol=1e-4)
    for model in (low, lc.fold(low)):
        calls.clear()
        assert torch.allclose(model(x.clone().requires_grad_()), net(x.clone().requires_grad_()), atol=1e-4)
        calls.clear()
        model(x.clone().requires_grad_()).sum().backward()
        model.load_state_dict(model.state_dict())
        assert sorted(set(calls)) == ["always", "backward", "backward pre", "load", "pre", "state"]
        assert all(calls.count(kind) == 1 for kind in set(calls)), calls


@pytest.mark.parametrize("wrap", [lambda z: {"logits": z}, lambda z: (z, z)])
def test_outputs_keep_their_shape(wrap) -> None:
    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 3)

        def forward(self, x):
            return wrap(F.relu(self.linear(x)))

    net = Wrapped()
    low, _ = lc.convert(net, X, spectral=False, init_beta=1e6)
    assert type(low(X)) is type(net(X))

"""A whole step as one compiled function: all methods, the same numbers, compiled once, and what it refuses."""

import copy
import os
import random
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lowcurve.errors import UserError
from lowcurve.layers.normalized import normalized_layers, standing_still
from lowcurve.methods import apply_surgery, find_method
from lowcurve.training import traced
from lowcurve.training.compiled import CompiledStep
from lowcurve.training.config import Config
from lowcurve.training.distributed import World
from lowcurve.training.loop import _training_step, train
from lowcurve.training.step import TrainingStep
from lowcurve.training.traced import trace
from tests.training.makers import recipe, same_bits, weights

X, Y = torch.rand(6, 2, 6, 6, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 3


class Block(nn.Module):
    """What networks have: convolution, batch norm, activation, a shortcut."""

    def __init__(self, channels: int, activation: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels))
        self.activation = activation()

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(x + self.body(x))


def network(method: str, dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    recipe = find_method(method)
    learned = recipe.activation in ("learned", "relu")
    activation: Callable[[], nn.Module] = nn.ReLU if learned else lambda: nn.Softplus(beta=4.0)
    plain = nn.Sequential(Block(2, activation), nn.Conv2d(2, 4, 3, 2), nn.Flatten(), nn.Linear(16, 3))
    return apply_surgery(plain, recipe, (2, 6, 6), {"init_gamma": 0.7}).train().to(dtype)


def small_network(method: str, dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(2, 2, 3, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3))
    return apply_surgery(plain, find_method(method), (2, 6, 6)).train().to(dtype)


def compare(method: str, backend: str, dtype: torch.dtype, tolerance: float, **coefficients: object) -> None:
    """Take three steps of both kinds from equal weights; the second and third are not compiled again."""
    plain = network(method, dtype)
    mine = copy.deepcopy(plain)
    expected, found = TrainingStep(plain, method, coefficients), TrainingStep(mine, method, coefficients)
    compiled = CompiledStep(found, backend)
    for step in range(3):
        with torch._dynamo.config.patch(error_on_recompile=step > 0):
            values = []
            for take in (expected, compiled):
                torch.manual_seed(step)
                values.append({name: float(value) for name, value in take(X.to(dtype), Y).items()})
        assert values[0] == pytest.approx(values[1], rel=100 * tolerance)
        largest = max(float(p.grad.abs().max()) for p in plain.parameters())
        with torch.no_grad():
            for (name, theirs), own in zip(plain.named_parameters(), mine.parameters(), strict=True):
                assert (theirs.grad - own.grad).abs().max() <= tolerance * largest, (step, name)
                own.copy_(theirs.sub_(0.1 * theirs.grad))
        for (name, theirs), own in zip(plain.named_buffers(), mine.named_buffers(), strict=True):
            assert own[1] is not theirs
            assert torch.allclose(theirs, own[1], rtol=0, atol=100 * tolerance), (step, name)


@pytest.fixture
def graph_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run graphs as they are traced: what compilers make of them is seen with two methods below."""
    monkeypatch.setattr(CompiledStep, "_compiled", lambda self, traced: traced.graph)


@pytest.mark.usefixtures("graph_alone")
@pytest.mark.parametrize("method", ["standard", "gradreg", "lcnn", "cure", "lcnn+adv", "certified", "lipschitz"])
def test_every_method_has_the_gradients_of_its_eager_step(method: str) -> None:
    compare(method, "eager", torch.float64, 1e-9)


@pytest.mark.usefixtures("graph_alone")
def test_differences_and_attacks_in_training_mode() -> None:
    compare("lcnn+gradreg+adv", "eager", torch.float64, 1e-9, gradient="finite", adversarial_mode="train")


def test_compiled_in_float64() -> None:
    compare("lcnn+gradreg", "aot_eager", torch.float64, 1e-9)


@pytest.mark.skipif("LOWCURVE_SLOW" not in os.environ, reason="LOWCURVE_SLOW=1 compiles more methods")
@pytest.mark.parametrize("method", ["standard", "lcnn", "gradreg", "cure+adv", "certified"])
@pytest.mark.parametrize(
    ("backend", "dtype", "tolerance"), [("aot_eager", "float64", 1e-9), ("inductor", "float32", 1e-4)]
)
def test_compiled_methods(method: str, backend: str, dtype: str, tolerance: float) -> None:
    compare(method, backend, getattr(torch, dtype), tolerance)


def test_compiled_by_inductor(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small network: every loop is a call of a C++ compiler."""
    monkeypatch.setitem(globals(), "network", small_network)
    compare("lcnn+gradreg", "inductor", torch.float32, 1e-4)


@pytest.mark.usefixtures("graph_alone")
def test_batches_of_another_size_modes_and_frozen_weights_are_other_functions() -> None:
    net = network("lcnn")
    step = CompiledStep(TrainingStep(net, "lcnn"), "eager")
    for size in (6, 4, 6):
        step(X[:size], Y[:size])
    assert len(step._known) == 2
    net[1].parametrizations.weight.original.requires_grad_(False)
    step(X, Y)
    assert net[1].parametrizations.weight.original.grad is None
    net[0].eval()
    before = net[0].body[1].norm.running_mean.clone()
    step(X, Y)
    assert torch.equal(net[0].body[1].norm.running_mean, before)
    assert len(step._known) == 4


def test_no_two_gradients_share_memory() -> None:
    """Compilers compute equal things once, and whoever clips gradients multiplies each in place."""
    torch.manual_seed(0)
    net = network("lcnn")
    net.append(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)))
    step = CompiledStep(TrainingStep(net, "lcnn"), "aot_eager")
    step(X, Y)
    before = [p.grad.clone() for p in net.parameters()]
    nn.utils.clip_grad_norm_(net.parameters(), 1e-3)
    scale = [float(p.grad.norm() / b.norm()) for p, b in zip(net.parameters(), before, strict=True) if b.norm() > 0]
    assert scale == pytest.approx([scale[0]] * len(scale), rel=1e-4)


def test_tracing_leaves_the_model_and_the_generator_alone() -> None:
    net = network("lcnn+adv")
    before, state = copy.deepcopy(net.state_dict()), torch.get_rng_state()
    with standing_still(normalized_layers(net)):
        trace(TrainingStep(net, "lcnn+adv"), [X, Y])
    assert torch.equal(state, torch.get_rng_state())
    for name, tensor in net.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    assert all(p.grad is None for p in net.parameters())


@pytest.mark.usefixtures("graph_alone")
@pytest.mark.parametrize("method", ["lcnn+gradreg", "cure", "lcnn+adv"])
def test_nothing_asks_for_a_value(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors on the device "meta" have none, and anything computed elsewhere would not go with them."""
    monkeypatch.setattr(traced, "_check_repeats", lambda *_: None)
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())  # which does not know that device
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda *_: False)
    net = network(method).to("meta")
    step = CompiledStep(TrainingStep(net, method), "eager")
    buffers = list(net.buffers())
    step(X.to("meta"), Y.to("meta"))
    ((found, _),) = step._known.values()
    nodes = [node.meta["val"] for node in found.graph.graph.nodes if isinstance(node.meta.get("val"), Tensor)]
    assert len(nodes) > 50
    assert all(value.device.type == "meta" for value in nodes)
    assert all(mine is before for mine, before in zip(net.buffers(), buffers, strict=True))
    assert all(p.grad is not None and p.grad.is_meta for p in net.parameters())


class Odd(nn.Module):
    """Does what no graph can repeat."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.calls = kind, 0
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "value" and x.sum() > 0:
            return 2 * x
        if self.kind == "counts":
            self.calls += 1
        if self.kind == "random":
            return x * random.random()
        if self.kind == "checkpoint":
            return checkpoint(lambda z: self.drop(z.square()), x, use_reentrant=False)
        return self.drop(x) if self.kind == "dropout" else x


@pytest.mark.parametrize(
    ("kind", "method", "reason"),
    [
        ("value", "standard", "cannot be written as one graph"),
        ("counts", "standard", "changes 4.calls"),
        ("random", "standard", "generator of Python"),
        ("checkpoint", "standard", "sets the state of a generator"),
        ("dropout", "cure", "sets the state of a generator"),
    ],
)
def test_what_a_graph_cannot_repeat_is_refused(kind: str, method: str, reason: str) -> None:
    net = network(method)
    net.append(Odd(kind))
    with pytest.raises(UserError, match=reason):
        CompiledStep(TrainingStep(net, method), "eager")(X, Y)


@pytest.mark.usefixtures("graph_alone")
def test_dropout_draws_new_noise_in_every_step() -> None:
    net = network("standard").append(nn.Dropout(0.5))
    step = CompiledStep(TrainingStep(net, "standard"), "eager")
    assert len({float(step(X, Y)["loss"]) for _ in range(3)}) > 1


@pytest.mark.usefixtures("graph_alone")
def test_a_compiled_run_resumes_to_the_same_bits_and_ends_near_an_eager_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def settings(name: str, compiled: bool = True) -> Config:
        given = {"model": {"from": "tests.training.makers:quiet_net"}, "method": {"name": "lcnn+gradreg"}}
        return recipe(tmp_path / name, train__compile=compiled, **given)

    real, calls = CompiledStep.__call__, iter(range(5))

    def fail(*arguments: Any) -> dict[str, Tensor]:
        if next(calls) == 4:
            raise KeyError
        return real(*arguments)

    whole, eager = train(settings("whole")), train(settings("eager", compiled=False))
    with monkeypatch.context() as patch, pytest.raises(KeyError):
        patch.setattr(CompiledStep, "__call__", fail)
        train(settings("parts"))
    assert same_bits(weights(train(settings("parts"), resume="auto")), weights(whole))
    near = weights(eager)
    for name, mine in weights(whole).items():
        if not name.endswith(("left", "right")):  # of nearly equal norms rounding chooses one
            assert torch.allclose(mine, near[name], atol=2e-3), name


def test_gradients_are_averaged_over_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    net = nn.Linear(2, 2)
    net.weight.grad = torch.ones(2, 2)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "all_reduce", lambda flat: flat.add_(1.5))  # the other's halves are 1.5
    World(0, 2, torch.device("cpu")).average_gradients(net)
    assert torch.equal(net.weight.grad, torch.full((2, 2), 2.0))
    assert net.bias.grad is None


def test_a_step_in_which_processes_wait_for_each_other_is_refused(tmp_path: Path) -> None:
    config = recipe(tmp_path, train__compile=True, train__sync_batchnorm=True)
    with pytest.raises(UserError, match="processes wait for each other"):
        _training_step(config, World(0, 2, torch.device("cpu")), network("lcnn"), 96)

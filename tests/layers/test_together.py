"""What all layers of a model derive at once: is it what each layer derives alone, and is it gone afterwards?"""

import contextlib
import copy
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import lowcurve as lc
from lowcurve.layers.normalized import normalized_layers
from lowcurve.layers.together import Together
from lowcurve.methods import build
from tests.fuzz.reference import plain

X, Y = torch.rand(8, 3, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 4


def network(alone: bool = False) -> nn.Module:
    torch.manual_seed(0)
    ordinary = build("relu", "resnet18", (3, 8, 8), 4, width=4)
    net, _ = lc.convert(ordinary, X, init_gamma=0.7)
    if alone:  # without the hooks each layer derives for itself
        net._forward_pre_hooks.clear()
        net._forward_hooks.clear()
    return net.train()


def total(net: nn.Module, penalized: bool) -> torch.Tensor:
    x = X.to(next(net.parameters()).dtype, copy=True).requires_grad_(penalized)
    losses = F.cross_entropy(net(x), Y, reduction="none")
    found = losses.mean() + lc.curvature_penalty(net)
    return found + 0.1 * lc.gradient_penalty(losses, x) if penalized else found


@pytest.mark.parametrize(("dtype", "rtol", "atol"), [(torch.float32, 1e-3, 2e-5), (torch.float64, 1e-9, 1e-12)])
@pytest.mark.parametrize("penalized", [False, True])
def test_a_loop_of_ones_own_has_the_gradients_of_layers_alone(
    penalized: bool, dtype: torch.dtype, rtol: float, atol: float
) -> None:
    """In float32 a gradient in log γ is known to a share of the largest: it is a difference of much larger numbers."""
    nets = network().to(dtype), network(alone=True).to(dtype)
    for _ in range(3):
        grads = [torch.autograd.grad(total(net, penalized), list(net.parameters())) for net in nets]
        largest = max(float(grad.abs().max()) for grad in grads[1])
        for name, mine, theirs in zip(dict(nets[0].named_parameters()), *grads, strict=True):
            size = largest if name.endswith("log_gamma") else float(theirs.abs().max() + 1e-3)
            assert torch.allclose(mine, theirs, rtol=rtol, atol=atol * size), name
        with torch.no_grad():
            for net in nets:
                for parameter, grad in zip(net.parameters(), grads[1], strict=True):
                    parameter -= 0.05 * grad
    for (name, mine), theirs in zip(nets[0].named_buffers(), nets[1].buffers(), strict=True):
        assert torch.allclose(mine.double(), theirs.double(), atol=1e-4), name
    assert not Together(nets[0]).is_around
    assert all(s.unit is None for _, _, s in normalized_layers(nets[0]))


class Kernels(TorchDispatchMode):
    """Count the operators of what runs inside."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def test_a_loop_of_ones_own_launches_no_more_than_the_step_of_a_method() -> None:
    counts = []
    for net in (network(), network(alone=True)):
        total(net, True).backward()
        with Kernels() as kernels:
            total(net, True).backward()
        counts.append(kernels.names.total())
    assert counts[0] < 0.4 * counts[1]


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("converted", [True, False])
def test_gradients_of_gradients_by_this_packages_formulas(
    converted: bool, dtype: torch.dtype, memory: torch.memory_format
) -> None:
    """Under autocast and in any layout: no double backward of PyTorch's, and numbers as good as the definitions'."""
    torch.manual_seed(0)
    net = network() if converted else build("softplus-wd", "resnet18", (3, 8, 8), 4, width=4).train()
    net.to(memory_format=memory)
    twin = copy.deepcopy(net)

    def penalty(model: nn.Module, lower: bool) -> torch.Tensor:
        x = X.contiguous(memory_format=memory).requires_grad_()
        mode = contextlib.nullcontext() if converted else lc.fast_double_backward()
        with mode, torch.autocast("cpu", dtype=dtype, enabled=lower):
            logits = model(x)
        return lc.gradient_penalty(F.cross_entropy(logits.float(), Y, reduction="none"), x)

    with Kernels() as kernels:
        penalty(net, dtype != torch.float32).backward()
    assert kernels.names["norm_second"] == 20 and not kernels.names["native_batch_norm_backward"]
    assert kernels.names["convolution"] <= 40  # PyTorch's double backward has more
    definitions, truth = plain(twin, torch.float32), twin
    penalty(truth, False).backward()
    penalty(definitions, dtype != torch.float32).backward()
    mine, theirs = (cosine(model, truth) for model in (net, definitions))
    assert mine > (theirs - 0.01 if dtype == torch.bfloat16 else 0.9999)


def cosine(first: nn.Module, second: nn.Module) -> float:
    """Compare all gradients of two networks."""
    grads = []
    for net in (first, second):
        named = sorted(net.named_parameters())
        grads.append(torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for _, p in named]))
    return float(F.cosine_similarity(*grads, dim=0))


def test_fast_double_backward_is_entered_once_per_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice would send functions through two modes, and modules that are joined inside one would be called apart."""
    entered, modes = lc.fast_double_backward.__enter__, []

    def enter(mode: lc.fast_double_backward) -> lc.fast_double_backward:
        modes.append(lc.fast_double_backward.is_on())
        return entered(mode)

    monkeypatch.setattr(lc.fast_double_backward, "__enter__", enter)
    lc.curvature(network().eval(), X, Y, max_iterations=2)
    assert modes and not any(modes)
    x = X.clone().requires_grad_()
    with lc.fast_double_backward(twice=False):  # convolutions are PyTorch's there: the model asks for its own
        network()(x)
    assert modes[-2:] == [False, False]


def test_two_forwards_before_a_backward() -> None:
    nets = network(), network(alone=True)
    for net in nets:
        (net(X).sum() + 2 * net(X.flip(0)).square().sum()).backward()
    for mine, theirs in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        assert torch.allclose(mine.grad, theirs.grad, atol=1e-4 * float(theirs.grad.abs().max() + 1e-3))


class Segments(nn.Module):
    """A network whose second half is checkpointed."""

    def __init__(self, reentrant: bool | None) -> None:
        super().__init__()
        parts = [[nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()], [nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)]]
        self.first, self.second = (nn.Sequential(*part) for part in parts)
        self.head, self.reentrant = nn.Sequential(nn.Flatten(), nn.Linear(144, 4)), reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        if self.reentrant is not None and self.training:
            return self.head(checkpoint(self.second, x, use_reentrant=self.reentrant))
        return self.head(self.second(x))


@pytest.mark.parametrize("reentrant", [True, False])
def test_segments_that_a_backward_repeats(reentrant: bool) -> None:
    torch.manual_seed(0)
    net, _ = lc.convert(Segments(reentrant), X, init_gamma=0.7)
    twin = copy.deepcopy(net)
    twin.reentrant = None
    for _ in range(2):
        for model in (net, twin):
            model.zero_grad()
            F.cross_entropy(model.train()(X), Y).backward()
        for mine, theirs in zip(net.parameters(), twin.parameters(), strict=True):
            assert torch.allclose(mine.grad, theirs.grad, atol=1e-6)
    for (name, mine), theirs in zip(net.named_buffers(), twin.buffers(), strict=True):
        assert torch.allclose(mine.double(), theirs.double(), atol=1e-5), name


def test_a_forward_that_fails_leaves_nothing_behind() -> None:
    net = network()
    for error in (RuntimeError, KeyboardInterrupt):

        def fail(*_inputs: object, error: type[BaseException] = error) -> None:
            raise error

        handle = net[-1].register_forward_pre_hook(fail)
        with pytest.raises(error):
            net(X.clone().requires_grad_())
        handle.remove()
    net(X)
    assert not Together(net).is_around
    assert torch.overrides._get_current_function_mode() is None


def test_a_submodule_alone_and_a_batch_norm_called_twice() -> None:
    torch.manual_seed(0)
    shared = nn.BatchNorm2d(3)
    net, _ = lc.convert(nn.Sequential(shared, nn.Conv2d(3, 3, 3), nn.ReLU()), X)
    net.add_module("again", net[0])
    net.train()(X)
    assert int(net[0].norm.num_batches_tracked) == 2
    net[1](X).sum().backward()
    assert bool(net[1].parametrizations.weight.original.grad.isfinite().all())


def test_weights_that_change_in_eval_mode_are_noticed() -> None:
    net = network().eval()
    before = net(X)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(1.5).add_(0.1 * torch.randn(parameter.shape))
    after = net(X)
    assert not torch.allclose(before, after)
    net._forward_pre_hooks.clear()
    assert torch.allclose(net(X), after, atol=1e-5)

import copy
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch._subclasses import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from lowcurve.kernels.cpu.library import LIBRARY
from lowcurve.kernels.replace import fast_double_backward
from lowcurve.layers.batchnorm import LipschitzBatchNorm1d, LipschitzBatchNorm2d
from lowcurve.layers.chain import _NORMS, Chain, _joined, activate
from lowcurve.layers.normalized import normalized_layers, standing_still
from lowcurve.layers.softplus import CenteredSoftplus
from lowcurve.methods import build
from lowcurve.surgery.fold import fold

needs_loops = pytest.mark.skipif(LIBRARY is None, reason="the loops were not compiled")

NORMS: dict[str, Callable[[int], nn.Module]] = {
    "plain": lambda c: nn.BatchNorm2d(c),
    "without affine part": lambda c: nn.BatchNorm2d(c, affine=False),
    "gamma": lambda c: LipschitzBatchNorm2d(c, init_gamma=0.7),
    "gamma, affine": lambda c: LipschitzBatchNorm2d(c, init_gamma=0.7, affine=True),
    "without memory": lambda c: nn.BatchNorm2d(c, track_running_stats=False),
    "cumulative": lambda c: nn.BatchNorm2d(c, momentum=None),
}
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "centered": lambda: CenteredSoftplus(init_beta=3.0),
    "sharp": lambda: CenteredSoftplus(init_beta=200.0),
    "softplus": lambda: nn.Softplus(beta=10.0),
}
# Higher derivatives of a sharp kink, which grow with powers of β, would show the rounding of float32.
DERIVATIVES = [("sharp", 1), *((name, order) for name in ("centered", "softplus") for order in (1, 2, 3))]
SHAPES = [(4, 2, 3, 3), (3, 5, 1, 7), (2, 3, 40, 40), (2, 130, 4, 4), (3, 3, 32, 32)]


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def modules(norm: str, activation: str, channels: int) -> tuple[nn.Module, nn.Module]:
    made = NORMS[norm](channels)
    with torch.no_grad():
        for i, parameter in enumerate(made.parameters()):
            parameter.add_(0.2 * random(*parameter.shape, seed=i))
    return made, ACTIVATIONS[activation]()


def one_by_one(norm: Any, activation: nn.Module, x: Tensor, other: Tensor | None, factor: float) -> Tensor:
    """The definition, in plain operations: the third derivative of PyTorch's own batch norm is wrong."""
    weight, bias = norm.scaled() if hasattr(norm, "scaled") else (norm.weight, norm.bias)
    inner = norm.norm if hasattr(norm, "norm") else norm
    norm(x.detach())  # moves the running statistics
    others = [d for d in range(x.dim()) if d != 1]
    centered = x - x.mean(others, keepdim=True)
    y = centered / (centered.square().mean(others, keepdim=True) + inner.eps).sqrt()
    shape = (-1, *(1,) * (x.dim() - 2))
    y = y if weight is None else y * weight.view(shape)
    y = y if bias is None else y + bias.view(shape)
    return activation(factor * (y if other is None else y + other))


def joined(norm: nn.Module, activation: nn.Module, x: Tensor, other: Tensor | None, factor: float) -> Tensor:
    y = _joined(norm, activation, x, other, factor)
    assert y is not None
    return y


def assert_close(ours: Tensor | None, truth: Tensor | None) -> None:
    assert (ours is None) == (truth is None)
    if ours is not None and truth is not None:
        scale = float(truth.abs().max()) if truth.numel() else 0.0
        assert torch.allclose(ours.double(), truth.double(), rtol=1e-4, atol=2e-5 * scale + 1e-6)


def results(
    function: Callable[..., Tensor], norm: nn.Module, activation: nn.Module, inputs: list[Tensor], order: int
) -> list[Tensor | None]:
    """Value, running statistics, and gradients of a loss of the given order of derivatives in the input."""
    inputs = [t.clone().requires_grad_() for t in inputs]
    other = inputs[1] if len(inputs) > 1 else None
    y = function(norm, activation, inputs[0], other, 0.6)
    loss = (y * y.detach().sin() + y.square()).sum()
    for _ in range(order - 1):
        gradients = torch.autograd.grad(loss, inputs, create_graph=True)
        loss = loss + sum(g.square().sum() for g in gradients)
    learned = [*inputs, *norm.parameters(), *activation.parameters()]
    gradients = torch.autograd.grad(loss, learned, allow_unused=True)
    return [y.detach(), *norm.buffers(), *gradients]


@needs_loops
@pytest.mark.parametrize("with_other", [False, True], ids=["alone", "with a shortcut"])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(("activation", "order"), DERIVATIVES)
def test_values_statistics_and_derivatives_are_those_of_the_modules_in_float64(
    norm: str, activation: str, with_other: bool, order: int
) -> None:
    parts = modules(norm, activation, 3)
    inputs = [random(4, 3, 5, 4), random(4, 3, 5, 4, seed=1)][: 1 + with_other]
    exact = [copy.deepcopy(part).double() for part in parts]
    ours = results(joined, *parts, inputs, order)
    truth = results(one_by_one, *exact, [t.double() for t in inputs], order)
    for found, expected in zip(ours, truth, strict=True):
        assert_close(found, expected)


@needs_loops
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("order", [1, 2])
def test_rows_of_any_length(shape: tuple[int, ...], order: int) -> None:
    parts = modules("plain", "centered", shape[1])
    inputs = [random(*shape), random(*shape, seed=1)]
    exact = [copy.deepcopy(part).double() for part in parts]
    for ours, truth in zip(
        results(joined, *parts, inputs, order),
        results(one_by_one, *exact, [t.double() for t in inputs], order),
        strict=True,
    ):
        assert_close(ours, truth)


@needs_loops
@pytest.mark.parametrize("shape", [(5000, 3), (7, 1500), (4, 3, 6)])
def test_inputs_of_one_dimensional_norms(shape: tuple[int, ...]) -> None:
    for norm in (nn.BatchNorm1d(shape[1]), LipschitzBatchNorm1d(shape[1], affine=True)):
        parts: list[nn.Module] = [norm, CenteredSoftplus()]
        exact = [copy.deepcopy(part).double() for part in parts]
        ours = results(joined, *parts, [random(*shape)], 2)
        truth = results(one_by_one, *exact, [random(*shape).double()], 2)
        for found, expected in zip(ours, truth, strict=True):
            assert_close(found, expected)


@needs_loops
def test_threads_do_not_change_a_bit() -> None:
    def bits(threads: int) -> list[Tensor | None]:
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            return results(
                joined, *modules("gamma", "centered", 16), [random(8, 16, 9, 9), random(8, 16, 9, 9, seed=1)], 2
            )
        finally:
            torch.set_num_threads(before)

    assert all(torch.equal(a, b) for a, b in zip(bits(1), bits(2), strict=True) if a is not None and b is not None)


@needs_loops
def test_gradients_of_several_losses_at_once() -> None:
    norm, activation = modules("plain", "centered", 3)
    x = random(4, 3, 2, 2).requires_grad_()
    y = joined(norm, activation, x, None, 1.0)
    directions = random(2, *y.shape, seed=1)
    together = torch.autograd.grad(y, [x, activation.log_beta], directions, is_grads_batched=True, retain_graph=True)
    for i, direction in enumerate(directions):
        for found, expected in zip(
            together, torch.autograd.grad(y, [x, activation.log_beta], direction, retain_graph=True), strict=True
        ):
            assert_close(found[i], expected)


@needs_loops
def test_memory_in_any_order() -> None:
    norm, activation = modules("plain", "centered", 3)
    x, other = random(4, 3, 5, 5).requires_grad_(), random(4, 3, 5, 5, seed=1)
    straight = joined(copy.deepcopy(norm), activation, x, other, 0.5)
    strided = other.to(memory_format=torch.channels_last)
    assert torch.equal(joined(copy.deepcopy(norm), activation, x, strided, 0.5), straight)
    cotangent = random(4, 3, 5, 5, seed=2)
    (found,) = torch.autograd.grad(straight, x, cotangent.to(memory_format=torch.channels_last), retain_graph=True)
    (expected,) = torch.autograd.grad(straight, x, cotangent)
    assert torch.equal(found, expected)


@needs_loops
def test_saved_tensors_may_come_back_in_another_order() -> None:
    def gradient(chain: nn.Module) -> Tensor:
        x = random(4, 3, 5, 5).requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(turn, lambda t: t.transpose(0, 1) if t.dim() == 4 else t):
            y = chain(x)
        (first,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), x)
        return second

    def turn(t: Tensor) -> Tensor:
        return t.transpose(0, 1).contiguous() if t.dim() == 4 else t

    layers = [nn.BatchNorm2d(3), CenteredSoftplus(2.0)]
    assert_close(gradient(Chain(*layers)), gradient(nn.Sequential(*copy.deepcopy(layers))))


@needs_loops
def test_sums_over_many_samples_keep_their_digits() -> None:
    x = random(4096, 8, 2, 2) + 1000
    norm = nn.BatchNorm2d(8)
    exact = copy.deepcopy(norm).double()
    y = joined(norm, nn.Softplus(beta=50.0), x, None, 1.0)
    assert float((y - nn.Softplus(beta=50.0)(exact(x.double()))).abs().max()) < 1e-4


def test_vmap_of_gradients() -> None:
    chain = Chain(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Softplus())
    x = random(4, 3, 5, 5).requires_grad_()
    y = chain(x)
    directions = random(2, *y.shape, seed=1)
    found = torch.vmap(lambda v: torch.autograd.grad(y, x, v, retain_graph=True)[0])(directions)
    for i, direction in enumerate(directions):
        assert_close(found[i], torch.autograd.grad(y, x, direction, retain_graph=True)[0])


REFUSED: dict[str, Callable[[nn.Module, nn.Module, Tensor], tuple[Any, Any, Tensor]]] = {
    "eval mode": lambda n, a, x: (n.eval(), a, x),
    "another activation": lambda n, a, x: (n, nn.ReLU(), x),
    "another norm": lambda n, a, x: (nn.GroupNorm(1, 3), a, x),
    "a threshold that shows": lambda n, a, x: (n, nn.Softplus(threshold=0.5), x),
    "a subclass of a norm": lambda n, a, x: (type("Own", (nn.BatchNorm2d,), {})(3), a, x),
}


JOINED: dict[str, Callable[[nn.Module, nn.Module, Tensor], tuple[Any, Any, Tensor]]] = {
    "float64": lambda n, a, x: (n.double(), a.double(), x.double()),
    "bfloat16": lambda n, a, x: (n, a, x.bfloat16()),
    "channels_last": lambda n, a, x: (n, a, x.to(memory_format=torch.channels_last)),
    "a negated view": lambda n, a, x: (n, a, torch._neg_view(x)),
    "every other column": lambda n, a, x: (n, a, x[..., ::2]),
}


@pytest.mark.parametrize("case", JOINED)
def test_any_dtype_and_layout_is_joined(case: str) -> None:
    norm, activation, x = JOINED[case](nn.BatchNorm2d(3), CenteredSoftplus(), random(4, 3, 5, 6))
    again, x = copy.deepcopy(norm), x.detach().requires_grad_()
    y, truth = joined(norm, activation, x, None, 1.0), activation(again(x))
    tolerance = 0.02 if x.dtype is torch.bfloat16 else 1e-5
    assert torch.allclose(y, truth, atol=tolerance)
    gradients = [torch.autograd.grad(t.square().sum(), x)[0] for t in (y, truth)]
    assert torch.allclose(*gradients, atol=20 * tolerance)


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_loops_cannot_do_is_done_by_the_modules(case: str) -> None:
    norm, activation, x = REFUSED[case](nn.BatchNorm2d(3), CenteredSoftplus(), random(4, 3, 5, 5))
    assert type(norm) not in _NORMS or _joined(norm, activation, x, None, 1.0) is None
    again = copy.deepcopy(norm)
    assert torch.equal(activate(activation, norm, x), activation(again(x)))


HOOKS = ["register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook"]


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("name", HOOKS)
def test_hooks_of_every_module_are_called(name: str, place: int) -> None:
    seen = []
    chain = Chain(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), CenteredSoftplus())
    handle = getattr(chain[place], name)(lambda *_: seen.append(name))
    chain(random(2, 3, 4, 4).requires_grad_()).sum().backward()
    assert seen == [name]
    handle.remove()


def test_a_hook_on_a_body_is_called() -> None:
    seen = []
    body = Chain(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3))
    body.register_forward_hook(lambda *_: seen.append(1))
    x = random(2, 3, 4, 4)
    activate(CenteredSoftplus(), body, x, x, 0.5)
    assert seen == [1]


def test_dispatch_modes_see_the_operations() -> None:
    seen = []

    class Watching(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    with Watching():
        Chain(nn.BatchNorm2d(3), nn.Softplus())(random(2, 3, 4, 4))
    assert torch.ops.lowcurve.norm.default in seen  # batch norm and softplus
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert Chain(nn.BatchNorm2d(4), nn.Softplus())(torch.randn(8, 4, 64, 64)).shape == (8, 4, 64, 64)


@pytest.mark.parametrize("inside", [False, True])
def test_another_mode_sees_the_modules_functions(inside: bool) -> None:
    seen = []

    class Watching(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    with fast_double_backward() if inside else nullcontext(), Watching():
        Chain(nn.BatchNorm2d(3), CenteredSoftplus())(random(2, 3, 4, 4))
    assert F.batch_norm in seen


def test_global_hooks_are_called() -> None:
    seen = []
    chain = Chain(nn.BatchNorm2d(3), CenteredSoftplus())
    with torch.nn.modules.module.register_module_forward_hook(lambda module, *_: seen.append(type(module))):
        chain(random(2, 3, 4, 4))
    assert seen == [nn.BatchNorm2d, CenteredSoftplus, Chain]


def test_a_chain_is_a_sequence() -> None:
    torch.manual_seed(0)
    layers = [
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        CenteredSoftplus(),
        nn.BatchNorm2d(4),
        nn.BatchNorm2d(4),
        nn.ReLU(),
    ]
    chain, plain = Chain(*layers), nn.Sequential(*copy.deepcopy(layers))
    assert chain.state_dict().keys() == plain.state_dict().keys()
    for _ in range(2):
        assert_close(chain(random(4, 3, 6, 6)), plain(random(4, 3, 6, 6)))
        for ours, theirs in zip(chain.buffers(), plain.buffers(), strict=True):
            assert_close(ours, theirs)
        chain.eval(), plain.eval()
    assert Chain()(torch.ones(2)).tolist() == [1.0, 1.0]


def test_one_value_per_channel_is_refused_as_by_pytorch() -> None:
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        Chain(nn.BatchNorm2d(3), CenteredSoftplus())(torch.zeros(1, 3, 1, 1))
    with pytest.raises(ValueError, match="expected 4D input"):
        Chain(nn.BatchNorm2d(3), CenteredSoftplus())(torch.zeros(2, 3, 4))
    without_eps = nn.BatchNorm2d(3, eps=0.0)
    try:
        expected = nn.Softplus()(without_eps(torch.zeros(2, 3, 4, 4)))
    except ValueError:  # PyTorch 2.8 and later
        with pytest.raises(ValueError, match="eps"):
            Chain(without_eps, nn.Softplus())(torch.zeros(2, 3, 4, 4))
    else:
        found = Chain(without_eps, nn.Softplus())(torch.zeros(2, 3, 4, 4))
        assert torch.allclose(found, expected, equal_nan=True)
    with pytest.raises(RuntimeError, match="running_mean should contain"):
        Chain(nn.BatchNorm2d(3), CenteredSoftplus())(torch.zeros(2, 5, 4, 4))


def test_tracers_and_transforms_see_plain_modules() -> None:
    chain = Chain(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), CenteredSoftplus())
    calls = [node.target for node in fx.symbolic_trace(chain).graph.nodes if node.op == "call_module"]
    assert calls[:2] == ["0", "1"]
    x = random(2, 3, 4, 4)
    chain[1].track_running_stats = False  # PyTorch moves no statistics under a transform
    _, tangent = torch.func.jvp(chain, (x,), (torch.ones_like(x),))
    step = (chain(x + 1e-2) - chain(x - 1e-2)) / 2e-2
    assert torch.allclose(tangent, step, atol=1e-3)


@pytest.mark.parametrize("name", ["resnet18", "vgg11"])
def test_networks_can_be_scripted(name: str) -> None:
    net = build("softplus-wd", name, (3, 16, 16), 3, width=2).eval()
    x = random(2, 3, 16, 16)
    assert torch.allclose(torch.jit.script(net)(x), net(x), atol=1e-6)


def test_autocast_keeps_its_precision() -> None:
    chain = Chain(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), CenteredSoftplus())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert chain(random(2, 3, 4, 4)).dtype == torch.bfloat16


@pytest.mark.parametrize("method", ["softplus-wd", "lcnn"])
@pytest.mark.parametrize("name", ["resnet18", "vgg11"])
def test_networks_compute_what_their_modules_do_in_float64(name: str, method: str) -> None:
    torch.manual_seed(0)
    net = build(method, name, (3, 16, 16), 3, width=2).train()
    found = []
    for dtype in (torch.float32, torch.float64):
        copied = copy.deepcopy(net).to(dtype)
        with standing_still(normalized_layers(copied)):  # one finds singular vectors in loops, the other does not
            copied(random(8, 3, 16, 16).to(dtype)).square().sum().backward()
        tensors = [*(t for t in copied.buffers()), *(p.grad for p in copied.parameters())]
        found.append(torch.cat([t.flatten().double() for t in tensors if t is not None]))
    assert float((found[0] - found[1]).norm()) <= 1e-4 * float(found[1].norm())


def test_a_folded_net_has_no_chain() -> None:
    net = build("lcnn", "resnet18", (3, 8, 8), 3, width=2).eval()
    plain = fold(net)
    assert type(plain) is nn.Sequential
    assert not any(type(module).__module__.startswith("lowcurve") for module in plain.modules())
    assert not any(module.training for module in plain.modules())
    x = random(2, 3, 8, 8)
    assert torch.allclose(plain(x), net(x), atol=1e-5)


def test_folding_keeps_hooks_and_attributes_of_a_chain() -> None:
    net = build("lcnn", "vgg11", (3, 16, 16), 3, width=2).eval()
    net.register_forward_hook(lambda module, inputs, output: output.softmax(1))
    net.classes = ["a", "b", "c"]
    x, plain = random(2, 3, 16, 16), fold(net)
    assert plain.classes == net.classes
    assert torch.allclose(plain(x), net(x), atol=1e-5)

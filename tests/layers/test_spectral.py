import copy

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.autograd import gradcheck, gradgradcheck

from lowcurve import spectral_norm
from lowcurve.errors import UserError
from lowcurve.kernels.cpu import power
from lowcurve.kernels.cpu.library import LIBRARY
from lowcurve.kernels.unit import _Units
from lowcurve.layers.normalized import (
    converge,
    follow_weights,
    normalized_layers,
    original,
    spectral_of,
    standing_still,
)
from lowcurve.linalg.linear_map import LinearMap
from lowcurve.linalg.singular import largest_singular
from tests.dense import dense_jacobian

needs_loops = pytest.mark.skipif(LIBRARY is None, reason="the loops were not compiled")


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[nn.Module, tuple[int, ...]]:
    dims = draw(st.sampled_from([1, 2]))
    groups = draw(st.sampled_from([1, 1, 2]))
    kernel = tuple(draw(st.integers(1, 4)) for _ in range(dims))
    stride = tuple(draw(st.integers(1, 3)) for _ in range(dims))
    dilation = tuple(draw(st.integers(1, 2)) for _ in range(dims))
    size = tuple(draw(st.integers(1, 7)) for _ in range(dims))
    mode = draw(st.sampled_from(["zeros", "circular"]))
    same = draw(st.booleans()) and all(s == 1 for s in stride)
    padding = "same" if same else tuple(draw(st.integers(0, 3)) for _ in range(dims))
    if mode == "circular":
        reach = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)] if same else padding
        assume(all(p <= n for p, n in zip(reach, size, strict=True)))
    cls = (nn.Conv1d, nn.Conv2d)[dims - 1]
    torch.manual_seed(draw(st.integers(0, 2**16)))
    module = cls(2 * groups, 3 * groups, kernel, stride, padding, dilation, groups, padding_mode=mode)
    pads = [(0, 0)] * dims
    if not same:
        pads = [(p, p) for p in padding]
        assume(all(n + 2 * p > d * (k - 1) for n, (p, _), d, k in zip(size, pads, dilation, kernel, strict=True)))
    return module.double(), size


@settings(deadline=None, max_examples=120)
@given(convolutions())
def test_map_and_adjoint_equal_the_dense_matrix(case: tuple[nn.Module, tuple[int, ...]]) -> None:
    module, size = case
    linear_map = LinearMap.of(module, size)
    dense = dense_jacobian(module, linear_map.input_shape)
    x = torch.randn(2, *linear_map.input_shape, dtype=torch.float64)
    y = torch.randn(2, *linear_map.output_shape, dtype=torch.float64)
    assert torch.allclose(linear_map.apply(module.weight, x).flatten(1), x.flatten(1) @ dense.T)
    assert torch.allclose(linear_map.adjoint(module.weight, y).flatten(1), y.flatten(1) @ dense)
    weight = module.weight.detach().requires_grad_()
    (truth,) = torch.autograd.grad((y * linear_map.apply(weight, x)).sum(), weight)
    assert torch.allclose(linear_map.outer(y, x), truth)


@settings(deadline=None, max_examples=80)
@given(convolutions())
def test_converged_layer_has_unit_dense_norm(case: tuple[nn.Module, tuple[int, ...]]) -> None:
    module, size = case
    truth = float(torch.linalg.matrix_norm(dense_jacobian(module, LinearMap.of(module, size).input_shape), 2))
    assume(truth > 1e-6)
    spectral_norm(module.float(), size)
    sigma = converge(module)[""]
    assert sigma == pytest.approx(truth, rel=1e-4)
    normalized = dense_jacobian(module, spectral_of(module).map.input_shape)
    assert float(torch.linalg.matrix_norm(normalized, 2)) == pytest.approx(1.0, abs=1e-4)


def test_warm_started_iteration_follows_a_training_weight() -> None:
    torch.manual_seed(0)
    layer = spectral_norm(nn.Conv2d(3, 8, 3, padding=1), (8, 8)).train()
    optimizer = torch.optim.SGD(layer.parameters(), 0.05)
    for _ in range(60):
        optimizer.zero_grad()
        (layer(torch.randn(4, 3, 8, 8)) - 1).square().mean().backward()
        optimizer.step()
    assert float(torch.linalg.matrix_norm(dense_jacobian(copy.deepcopy(layer), (3, 8, 8)), 2)) == pytest.approx(
        1, abs=0.03
    )


def linear() -> nn.Module:
    torch.manual_seed(0)
    return spectral_norm(nn.Linear(6, 4))


def state(layer: nn.Module) -> list[torch.Tensor]:
    return [t.clone() for t in layer.state_dict().values()]


def test_eval_and_reading_never_iterate_and_training_iterates_once() -> None:
    layer = linear()
    before = state(layer)
    _ = layer.weight, layer.weight
    layer.eval()(torch.randn(2, 6))
    assert all(map(torch.equal, before, state(layer)))
    layer.train()(torch.randn(2, 6))
    spectral = spectral_of(layer)
    weight = original(layer).detach()
    left = next(t for t in before if t.shape == (1, 4))
    v = weight.T @ left[0]
    assert torch.allclose(spectral.right[0], v / v.norm(), atol=1e-6)


def test_state_dict_keys_exist_from_construction_and_round_trip() -> None:
    layer, twin = linear(), spectral_norm(nn.Linear(6, 4))
    assert set(layer.state_dict()) == {
        "bias",
        "parametrizations.weight.original",
        "parametrizations.weight.0.left",
        "parametrizations.weight.0.right",
    }
    twin.load_state_dict(layer.state_dict())
    x = torch.randn(3, 6)
    assert torch.equal(twin(x), layer(x))
    assert torch.equal(copy.deepcopy(layer).eval()(x), layer.eval()(x))


def test_advancing_all_layers_at_a_time_is_what_their_forwards_do() -> None:
    torch.manual_seed(0)
    layers = [spectral_norm(nn.Linear(6, 4)), spectral_norm(nn.Linear(4, 3), iterations=2), nn.Linear(3, 2)]
    net = nn.Sequential(*layers).train()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(torch.randn_like(parameter))
    twin, x = copy.deepcopy(net), torch.randn(5, 6)
    y = net(x)
    follow_weights(normalized_layers(twin))
    with standing_still(normalized_layers(twin)):
        assert torch.allclose(twin(x), y, atol=1e-6)
        assert torch.equal(twin(x), twin(x))
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(state(net), state(twin), strict=True))
    with torch.no_grad():
        original(twin[0]).add_(torch.randn(4, 6))
    twin(x)
    assert not torch.allclose(spectral_of(twin[0]).left, spectral_of(net[0]).left, atol=1e-2)


def test_backward_after_two_training_forwards() -> None:
    layer = linear().train()
    x = torch.randn(3, 6)
    (layer(x) + layer(x)).sum().backward()
    assert bool(original(layer).grad.isfinite().all())


def test_gradients_of_the_normalized_weight() -> None:
    layer = spectral_norm(nn.Conv2d(2, 2, 2, stride=2, padding=1).double(), (3, 3))
    spectral = spectral_of(layer)
    weight = original(layer).detach().requires_grad_()
    assert gradcheck(spectral, (weight,))
    assert gradgradcheck(spectral, (weight,))


def test_compile_and_autocast() -> None:
    layer = spectral_norm(nn.Conv2d(3, 4, 3, padding="same"), (8, 8)).train()
    twin = copy.deepcopy(layer)
    x = torch.randn(2, 3, 8, 8)
    compiled = torch.compile(twin, backend="eager", fullgraph=True)
    assert torch.allclose(compiled(x), layer(x), atol=1e-6)
    assert torch.allclose(spectral_of(twin).left, spectral_of(layer).left, atol=1e-6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(x)
    assert y.dtype == torch.bfloat16
    assert spectral_of(layer).left.dtype == torch.float32


def test_zero_weight_gives_zero_not_nan() -> None:
    layer = nn.Linear(3, 2, bias=False)
    nn.init.zeros_(layer.weight)
    assert torch.equal(spectral_norm(layer)(torch.ones(1, 3)), torch.zeros(1, 2))


@pytest.mark.parametrize(
    ("module", "size", "message"),
    [
        (nn.Conv2d(3, 3, 3), None, "needs input_size"),
        (nn.Conv2d(3, 3, 3), (2, 2), "too small"),
        (nn.Conv2d(3, 3, 3, padding=1, padding_mode="reflect"), (8, 8), "padding_mode"),
        (nn.ReLU(), None, "expected a Linear or Conv layer"),
        (linear(), None, "already"),
    ],
)
def test_what_cannot_be_normalized_is_refused(module: nn.Module, size: tuple[int, int] | None, message: str) -> None:
    with pytest.raises(UserError, match=message):
        spectral_norm(module, size)


def test_normalization_where_compiled_loops_must_not_reach() -> None:
    layer = linear()
    weight = layer.weight
    outer = torch.eye(weight.numel()).view(-1, *weight.shape)
    (batched,) = torch.autograd.grad(weight, original(layer), outer, is_grads_batched=True, retain_graph=True)
    (first,) = torch.autograd.grad(weight, original(layer), outer[0])
    assert torch.allclose(batched[0], first, atol=1e-6)
    with torch.device("meta"):  # the default for new tensors, not the layer's own
        assert layer.weight.device.type == "cpu"
    spectral_of(layer).double()  # vectors more precise than the weight
    layer.weight.sum().backward()
    expected = copy.deepcopy(layer).double()
    expected.zero_grad()
    expected.weight.sum().backward()
    assert torch.allclose(original(layer).grad.double(), original(expected).grad, atol=1e-6)


@pytest.mark.parametrize("shape", [(1, 1), (3, 5, 3, 3), (64, 300), (128, 70, 3, 3)])
def test_normalization_in_float32_agrees_with_float64(shape: tuple[int, ...]) -> None:
    """Compiled loops and PyTorch's operations are one function; weights and gradients may lie in any order."""
    torch.manual_seed(0)
    weight, slope, grad = torch.randn(3, *shape)
    weight, grad = weight.transpose(0, 1).contiguous().transpose(0, 1), 1 + grad
    found, expected = [], []
    for dtype, results in ((torch.float32, found), (torch.float64, expected)):
        w = weight.detach().to(dtype).requires_grad_()
        normalized, sigma = _Units.apply(1, w, slope.to(dtype).abs() * w.detach().sign())
        normalized.backward(grad.to(dtype))
        results += [normalized.detach(), sigma.detach(), w.grad]
    scale = float(grad.abs().max() / expected[1])  # of the terms that make the gradient: the two may cancel
    for mine, theirs in zip(found, expected, strict=True):
        assert torch.allclose(mine.double(), theirs, rtol=1e-4, atol=1e-5 * scale)
    zero = torch.zeros(shape, requires_grad=True)
    assert not _Units.apply(1, zero, slope)[0].any()  # 0 / tiny


@st.composite
def image_convolutions(draw: st.DrawFn) -> nn.Conv2d:
    kernel = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    stride = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    same = draw(st.booleans()) and stride == (1, 1)
    padding = "same" if same else draw(st.tuples(st.integers(0, 3), st.integers(0, 3)))
    torch.manual_seed(draw(st.integers(0, 2**16)))
    return nn.Conv2d(draw(st.integers(1, 20)), draw(st.integers(1, 40)), kernel, stride, padding)


@needs_loops
@settings(deadline=None, max_examples=120)
@given(image_convolutions(), st.integers(1, 20), st.integers(1, 20))
def test_compiled_singular_vectors_equal_those_of_the_dense_matrix(module: nn.Conv2d, height: int, width: int) -> None:
    pads = (0, 0) if module.padding == "same" else module.padding
    reach = [n + 2 * int(p) for n, p in zip((height, width), pads, strict=True)]
    assume(module.padding == "same" or all(n >= k for n, k in zip(reach, module.kernel_size, strict=True)))
    own = LinearMap.of(module, (height, width))
    weight = module.weight.detach()
    left, right = torch.randn(1, *own.output_shape), torch.randn(1, *own.input_shape)
    start = torch.randn(1, *own.input_shape, dtype=torch.float64)
    truth = largest_singular(own, weight.double(), start).sigma
    assume(truth > 1e-3)  # a kernel may see nothing but padding
    (slope,) = power.follow([own], [weight], [left], [right])
    wide, u, v = weight.double(), left.double(), right.double()
    assert torch.allclose(slope.double(), own.outer(u, v), atol=2e-5)
    image = own.apply(wide, v)
    sigma = float((wide * slope.double()).sum())
    assert float(u.norm()) == pytest.approx(1, abs=1e-5) and float(v.norm()) == pytest.approx(1, abs=1e-5)
    assert torch.allclose(image, sigma * u, atol=1e-4 * sigma)
    assert 0.9 * truth < sigma < 1.0001 * truth  # in one call from anywhere; in training it starts near


@needs_loops
def test_compiled_vectors_are_exact_where_their_space_is_whole() -> None:
    own = LinearMap.of(nn.Conv2d(2, 2, 2), (3, 3))  # eight outputs
    weight = torch.randn(2, 2, 2, 2, generator=torch.Generator().manual_seed(0))
    left, right = torch.ones(1, 2, 2, 2), torch.ones(1, 2, 3, 3)
    left[0, 0, 0, 0] = 2.0
    (slope,) = power.follow([own], [weight], [left], [right])
    truth = largest_singular(own, weight.double(), torch.randn(1, 2, 3, 3, dtype=torch.float64)).sigma
    assert float((weight * slope).sum()) == pytest.approx(truth, rel=1e-5)


@needs_loops
def test_compiled_vectors_of_nothing_and_by_any_number_of_threads() -> None:
    own = LinearMap.of(nn.Conv2d(3, 5, 3, padding=1), (6, 6))
    left, right = torch.ones(1, 5, 6, 6), torch.ones(1, 3, 6, 6)
    (slope,) = power.follow([own], [torch.zeros(5, 3, 3, 3)], [left], [right])
    assert not slope.any() and not left.any() and not right.any()

    def bits(threads: int) -> list[torch.Tensor]:
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        generator = torch.Generator().manual_seed(0)
        u = [torch.randn(1, 5, 6, 6, generator=generator) for _ in range(4)]
        v = [torch.randn(1, 3, 6, 6, generator=generator) for _ in range(4)]
        weights = [torch.randn(5, 3, 3, 3, generator=generator) for _ in range(4)]
        try:
            return [*power.follow([own] * 4, weights, u, v), *u, *v]
        finally:
            torch.set_num_threads(before)

    assert all(torch.equal(a, b) for a, b in zip(bits(1), bits(2), strict=True))


@needs_loops
def test_compiled_vectors_are_the_same_in_either_layout() -> None:
    own = LinearMap.of(nn.Conv2d(3, 40, (3, 2), (2, 1), (1, 0)), (9, 7))
    start = torch.randn(1, *own.output_shape), torch.randn(1, *own.input_shape)
    weight = 1e25 * torch.randn(40, 3, 3, 2)  # whose square no float32 holds
    found = []
    for layout in (torch.contiguous_format, torch.channels_last):
        w, left, right = (t.clone(memory_format=layout) for t in (weight, *start))
        slope = torch.empty_like(w)
        power.follow([own], [w], [left], [right], [slope])
        found.append((left, right, slope))
    for one, other in zip(*found, strict=True):
        assert one.isfinite().all() and torch.equal(one, other)


def test_iterations_are_seen_by_graphs_that_saved_the_vectors() -> None:
    layer = spectral_norm(nn.Conv2d(3, 4, 3, padding=1), (8, 8)).train()
    spectral = spectral_of(layer)
    assert spectral is not None
    y = nn.functional.conv2d(spectral.right, original(layer), padding=1)
    layer(torch.randn(2, 3, 8, 8))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_a_shared_spectral_norm_iterates_once() -> None:
    torch.manual_seed(0)
    first, second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(3, 4, 3, padding=1)
    spectral_norm(first, (8, 8)).train()
    spectral_norm(second, (8, 8)).train()
    alone = copy.deepcopy(first)
    second.parametrizations = first.parametrizations
    follow_weights(normalized_layers(nn.ModuleList([first, second])))
    follow_weights(normalized_layers(nn.ModuleList([alone])))
    shared, own = spectral_of(first), spectral_of(alone)
    assert shared is not None and own is not None
    assert torch.equal(shared.right, own.right)

"""Lower estimate ≤ dense truth ≤ upper bound, for every kind of convolution."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import lowcurve as lc
from lowcurve.errors import UserError
from lowcurve.guarantees.operator_norm import effective_weight, fourier_bound, gains, row_norms
from lowcurve.linalg.linear_map import LinearMap
from tests.guarantees.oracles import dense_matrix


@st.composite
def convolutions(draw):
    """A random Conv1d or Conv2d and an input size that it accepts."""
    dims = draw(st.integers(1, 2))
    kernel = [draw(st.integers(1, 4)) for _ in range(dims)]
    dilation = [draw(st.integers(1, 2)) for _ in range(dims)]
    extent = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    circular = draw(st.booleans())
    size = [draw(st.integers(1, 7)) for _ in range(dims)]
    padding = [draw(st.integers(0, min(4, n) if circular else 4)) for n in size]
    size = [max(n, e - 2 * p, p if circular else 1) for n, e, p in zip(size, extent, padding, strict=True)]
    groups = draw(st.sampled_from([1, 1, 2]))
    channels = [groups * draw(st.integers(1, 3)) for _ in range(2)]
    stride = [draw(st.integers(1, 3)) for _ in range(dims)]
    torch.manual_seed(draw(st.integers(0, 2**31 - 1)))
    kind = nn.Conv1d if dims == 1 else nn.Conv2d
    mode = "circular" if circular else "zeros"
    module = kind(*channels, tuple(kernel), tuple(stride), tuple(padding), tuple(dilation), groups, padding_mode=mode)
    if draw(st.booleans()):
        module.weight.data.abs_()  # the hardest case: the largest gain is at frequency 0 and meets the border
    return module, tuple(size)


@settings(max_examples=600, deadline=None, derandomize=True)
@given(convolutions())
def test_estimate_truth_and_bound_are_in_order(case):
    module, size = case
    matrix = dense_matrix(module, (module.in_channels, *size))
    truth = float(torch.linalg.matrix_norm(matrix, ord=2))
    lower = lc.operator_norm(module, size).value
    symbol = fourier_bound(LinearMap.of(module, size), effective_weight(module))
    upper = lc.operator_norm_bound(module, size).value
    assert lower <= truth * (1 + 1e-9)
    assert truth <= symbol * (1 + 1e-9)
    assert truth <= upper <= symbol * (1 + 2e-4)
    norms = gains(LinearMap.of(module, size), effective_weight(module))
    assert float(matrix.abs().sum(0).max()) <= norms.n11 * (1 + 1e-9)
    assert float(matrix.norm(dim=0).max()) <= norms.n12 * (1 + 1e-9)
    rows = row_norms(LinearMap.of(module, size), effective_weight(module)).flatten()
    assert bool((matrix.norm(dim=1) <= rows * (1 + 1e-9)).all())


def test_the_symbol_is_exact_for_circular_padding():
    torch.manual_seed(0)
    module = nn.Conv2d(3, 4, 3, stride=2, padding=1, padding_mode="circular").double()
    truth = float(torch.linalg.matrix_norm(dense_matrix(module, (3, 8, 6)), ord=2))
    bound = fourier_bound(LinearMap.of(module, (8, 6)), effective_weight(module))
    assert bound == pytest.approx(truth, rel=1e-12)


def test_the_symbol_is_tight_at_the_size_of_a_real_layer():
    torch.manual_seed(0)
    module = nn.Conv2d(64, 64, 3, padding=1)
    bound, truth = lc.operator_norm_bound(module, 32), lc.operator_norm(module, 32)
    assert bound.method == "largest singular value of the Fourier symbol"
    assert truth.value <= bound.value <= 1.02 * truth.value


def test_column_and_row_norms_are_exact():
    torch.manual_seed(1)
    module = nn.Conv2d(2, 4, 3, stride=2, padding=2, groups=2)
    matrix = dense_matrix(module, (2, 5, 6))
    norms = gains(LinearMap.of(module, (5, 6)), effective_weight(module))
    assert norms.n11 == pytest.approx(float(matrix.abs().sum(0).max()), rel=2e-4)
    assert norms.n12 == pytest.approx(float(matrix.norm(dim=0).max()), rel=2e-4)


def test_a_parametrized_layer_is_bounded_with_the_weight_that_it_applies():
    torch.manual_seed(0)
    layer = nn.Conv2d(3, 8, 3, padding=1)
    before = lc.operator_norm_bound(layer, 8).value
    lc.spectral_norm(layer, (8, 8))
    after = lc.operator_norm_bound(layer, 8).value
    assert before > 1.2
    assert after == pytest.approx(1.0, rel=0.1)
    assert after >= lc.operator_norm(layer, 8).value


def test_other_layers_and_missing_sizes_are_refused():
    with pytest.raises(UserError, match="expected a Linear or Conv layer, got ReLU"):
        lc.operator_norm_bound(nn.ReLU(), 8)
    with pytest.raises(UserError, match="needs input_size"):
        lc.operator_norm(nn.Conv2d(3, 3, 3))

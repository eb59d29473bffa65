import copy
import math

import pytest
import torch

from lowcurve.kernels import cpu, ops, reference
from lowcurve.kernels.cpu.library import LIBRARY
from tests.kernels.truth import CASES, random

IMPLEMENTATIONS = {"reference": reference, "cpu": cpu, "dispatched": ops}


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("case", CASES)
def test_operators_equal_their_definition(case: str, implementation: str) -> None:
    assert max(CASES[case](IMPLEMENTATIONS[implementation])) < 2e-4


@pytest.mark.skipif(LIBRARY is None, reason="the loops were not compiled")
@pytest.mark.parametrize("shape", [(3, 5, 7, 9), (2, 2000, 3, 3), (8, 16, 32, 32), (1, 7, 1, 2)])
def test_channels_last_stays_in_its_layout_and_does_not_depend_on_threads(shape: tuple[int, ...]) -> None:
    x = random(*shape, channels_last=True)
    threads, results = torch.get_num_threads(), []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        results.append(cpu.norm(x, None, None, None, None, 0.1, 1e-5, None, torch.tensor(1.0), 1.0, 0.0))
    torch.set_num_threads(threads)
    assert results[0][0].is_contiguous(memory_format=torch.channels_last)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.skipif(LIBRARY is None, reason="the loops were not compiled")
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("shape", [(33, 5, 7, 3), (64, 128, 4, 4), (2, 2000, 3, 3), (128, 16, 32, 32)])
def test_statistics_far_from_zero_are_as_accurate_as_elsewhere(shape: tuple[int, ...], channels_last: bool) -> None:
    x = random(*shape, channels_last=channels_last) + 1000
    _, mean, invstd = cpu.norm(x, None, None, None, None, 0.1, 1e-5, None, None, 1.0, 0.0)
    var, truth = torch.var_mean(x.double(), (0, 2, 3), correction=0)
    assert float((mean / truth - 1).abs().max()) < 1e-7
    assert float((invstd * (var + 1e-5).sqrt() - 1).abs().max()) < 3e-7


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_stays_none(value: float) -> None:
    x = torch.tensor([value, 1.0])
    y, truth = (module.softplus(x, torch.tensor(0.0), 0.0) for module in (cpu, reference))
    assert torch.equal(torch.isnan(y), torch.isnan(truth))
    assert float(y[1]) == pytest.approx(float(truth[1]))


def test_operators_pass_pytorchs_own_checks() -> None:
    x, rho = random(2, 3, 4), torch.tensor(0.5)
    torch.library.opcheck(ops.softplus, (x, rho, 0.1))
    torch.library.opcheck(ops.softplus_gradient, (x, x, rho, 0.1, True))
    running = (torch.zeros(3), torch.ones(3))
    torch.library.opcheck(ops.norm, (x, None, None, *running, 0.1, 1e-5, None, rho, 1.0, 0.0))
    y, mean, invstd = ops.norm(x, None, None, *running, 0.1, 1e-5, None, rho, 1.0, 0.0)
    torch.library.opcheck(ops.norm_gradient, (x, y, x, None, mean, invstd, 1e-5, rho, 1.0, 0.0, False, True))


def test_operators_for_all_layers_pass_opcheck_in_any_layout() -> None:
    """A compiler goes by the layouts that plain PyTorch gives, and loops have to give the same."""
    weights, slopes = [torch.rand(2, 3, 3, 3), torch.rand(4, 5)], [torch.rand(2, 3, 3, 3), torch.rand(4, 5)]
    grads = [torch.rand(2, 3, 3, 3).contiguous(memory_format=torch.channels_last), torch.rand(5, 4).mT]
    units, sigma = ops.unit_weights(weights, slopes)
    torch.library.opcheck(ops.unit_weights, (weights, slopes))
    torch.library.opcheck(ops.unit_weights, (grads, slopes))
    torch.library.opcheck(ops.unit_weights_gradient, (grads, units, slopes, sigma))
    torch.library.opcheck(ops.unit_weights_gradient, (units, grads, slopes, sigma))
    rows, gammas = [torch.rand(3), torch.rand(2)], [torch.tensor(0.1), torch.tensor(9.0)]
    scaled, shifted, gains, factors = ops.scales(rows, [None, rows[1]], [None, rows[1]], gammas, [1e-5, 1e-5])
    torch.library.opcheck(ops.scales, (rows, [None, rows[1]], [None, rows[1]], gammas, [1e-5, 1e-5]))
    torch.library.opcheck(ops.scales_gradient, (scaled, shifted, [None, rows[1]], [None, rows[1]], gains, factors))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_running_statistics_are_known_to_have_moved(dtype: torch.dtype) -> None:
    running = torch.zeros(3, dtype=dtype), torch.ones(3, dtype=dtype)
    before = [t._version for t in running]
    ops.norm(random(4, 3, 5).to(dtype), None, None, *running, 0.1, 1e-5, None, None, 1.0, 0.0)
    assert [t._version for t in running] != before
    assert copy.deepcopy(running[0]).any()

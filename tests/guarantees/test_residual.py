"""1-Lipschitz residual blocks against dense matrices: the proof's inequality, Jacobians, certificates, refusals."""

import itertools

import pytest
import torch
from torch import nn

import lowcurve as lc
from lowcurve.errors import UserError
from lowcurve.guarantees.arithmetic import FLOAT32
from lowcurve.guarantees.graph import trace_network
from lowcurve.guarantees.residual import Residual
from lowcurve.guarantees.rounding import rounding
from tests.guarantees.oracles import dense_matrix

SIZES = [(1, 1), (2, 3), (5, 4)]  # of images: also smaller than the kernels
CASES = list(itertools.product(SIZES, (1, 3, 5), ("zeros", "circular"), (2, 7)))


def random_block(size, kernel, mode, hidden, seed=0, activation=None):
    """A block of 3 channels with weights, biases and q of every size, and its inputs' shape."""
    torch.manual_seed(seed)
    block = (
        lc.LipschitzResidual2d(3, hidden, kernel, activation, mode)
        if size
        else lc.LipschitzResidual(3, hidden, activation)
    )
    with torch.no_grad():
        for parameter in (block.weight, block.bias, block.log_q):
            parameter.normal_(0, 2)
    return block.double().eval(), (3, *size)


def matrices(block, shape):
    """Return Wᵀ as a dense matrix and 2/T, one number for each of its rows."""

    class Inner(nn.Module):
        def forward(self, x):
            return nn.functional.linear(x, block.weight) if len(shape) == 1 else block._convolve(x, block.weight)

    matrix = dense_matrix(Inner(), shape)
    return matrix, block.scale().detach().repeat_interleave(len(matrix) // len(block.bias))


@pytest.mark.parametrize("size,kernel,mode,hidden", [((), 1, "zeros", 2), ((), 1, "zeros", 7), *CASES], ids=str)
def test_the_proof_holds_in_numbers(size, kernel, mode, hidden):
    """WᵀW ⪯ T, and I − W C D Wᵀ has norm at most 1 for slopes D in [0, 1], at their ends too."""
    if mode == "circular" and kernel // 2 > min(size):
        pytest.skip("PyTorch pads by no more than once round")
    block, shape = random_block(size, kernel, mode, hidden)
    matrix, scale = matrices(block, shape)
    gap = torch.diag(2 / scale) - matrix @ matrix.T
    assert float(torch.linalg.eigvalsh(gap).min()) >= -1e-12 * float(gap.abs().max())
    for seed in range(8):
        slopes = torch.rand(len(scale), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        slopes = (slopes, slopes.round(), torch.ones_like(slopes))[seed % 3]
        jacobian = torch.eye(matrix.shape[1], dtype=torch.float64) - matrix.T @ torch.diag(scale * slopes) @ matrix
        assert float(torch.linalg.matrix_norm(jacobian, ord=2)) <= 1 + 1e-12


@pytest.mark.parametrize("activation", [None, nn.ReLU(), nn.Tanh(), nn.Softplus(3.0), nn.ELU()], ids=str)
def test_jacobians_have_norm_one_at_most_and_the_bound_says_so(activation):
    for size, kernel, mode in (((), 1, "zeros"), ((4, 3), 3, "zeros"), ((3, 4), 3, "circular")):
        block, shape = random_block(size, kernel, mode, 5, activation=activation)
        x = 3 * torch.randn(12, *shape, dtype=torch.float64)
        found = torch.func.vmap(torch.func.jacrev(lambda v, block=block: block(v[None])[0].flatten()))(x)
        norms = torch.linalg.matrix_norm(found.detach().flatten(2), ord=2)
        step = trace_network(nn.Sequential(block, nn.Flatten()), shape).nodes[3].step
        assert isinstance(step, Residual) and 1 <= step.gains.n22 <= 1 + 1e-5
        assert float(norms.max()) <= 1 + 1e-12 and float(norms.max()) > 0.5


def test_a_scale_that_is_too_large_loosens_the_constant(monkeypatch):
    """The constant is computed from the scale that is used, not taken on trust."""
    block, shape = random_block((), 1, "zeros", 5)
    honest = block.scale()
    monkeypatch.setattr(type(block), "scale", lambda self: 1.5 * honest.to(self.weight))
    step = trace_network(nn.Sequential(block), shape).nodes[3].step
    matrix, _ = matrices(block, shape)
    jacobian = torch.eye(3, dtype=torch.float64) - matrix.T @ torch.diag(1.5 * honest.detach()) @ matrix
    assert step.gains.n22 > 1.5 and float(torch.linalg.matrix_norm(jacobian, ord=2)) <= step.gains.n22


def deep(blocks, activation=None):
    torch.manual_seed(1)
    made = [lc.LipschitzResidual(2, 8, activation) for _ in range(blocks)]
    for block in made:
        block.weight.data.normal_()
        block.bias.data.normal_()
    return nn.Sequential(*made, nn.Linear(2, 3)).eval()


@pytest.mark.parametrize("activation", [None, nn.ReLU()], ids=str)
def test_depth_costs_neither_slope_nor_rounding(activation):
    x = torch.rand(4, 2)
    for blocks in (2, 20):
        net = trace_network(deep(blocks, activation), (2,))
        assert float(net.reaches()[-2].lipschitz.max()) <= 1 + 1e-4
        errors = rounding(net, net.values(x), net.reaches(), torch.full((4,), 0.1).double(), FLOAT32)
        assert float(errors[-1].parts.max()) < 2e-5 * blocks


@pytest.mark.parametrize("activation", [None, nn.ReLU()], ids=str)
def test_no_point_of_a_grid_contradicts_a_certificate(activation):
    for seed, blocks in ((0, 1), (1, 4), (2, 8)):
        model = deep(blocks, activation)
        x = 2 * torch.randn(12, 2, generator=torch.Generator().manual_seed(seed))
        y = model(x).argmax(1)
        found = lc.certify(model, x, y, local=True)
        assert bool((found.radius >= found.lipschitz_radius).all()) and float(found.radius.min()) > 0
        angles = torch.linspace(0, 6.2832, 360)
        rays = torch.stack([angles.cos(), angles.sin()], 1)
        for share in (0.3, 0.7, 0.99, 0.9999):
            points = x.unsqueeze(1) + share * found.radius.float().view(-1, 1, 1) * rays
            assert bool((model(points.flatten(0, 1)).argmax(1).view(12, -1) == y.view(-1, 1)).all())


def test_curvature_counts_where_slopes_are_below_the_constant():
    """At low β the second-order radius is larger than margin / L, which knows only the constant."""
    torch.manual_seed(0)
    model = nn.Sequential(*(lc.LipschitzResidual(6, 12, lc.CenteredSoftplus(0.1)) for _ in range(3)), nn.Linear(6, 3))
    x = torch.randn(10, 6)
    found = lc.certify(model, x, model(x).argmax(1))
    assert float((found.radius / found.lipschitz_radius).median()) > 1.2


@pytest.mark.parametrize(
    "activation", [nn.GELU(), nn.SiLU(), nn.LeakyReLU(-0.2), nn.ELU(2.0), nn.Identity(), "relu"], ids=str
)
def test_other_slopes_are_refused(activation):
    with pytest.raises(UserError, match="activation"):
        lc.LipschitzResidual(3, activation=activation)
    if isinstance(activation, nn.Module):
        block = lc.LipschitzResidual2d(3)
        block.activation = activation
        with pytest.raises(UserError, match=type(activation).__name__):
            lc.bounds(nn.Sequential(block, nn.Flatten(), nn.Linear(12, 2)), (3, 2, 2))


@pytest.mark.parametrize(
    "changes", [{"kernel_size": 2}, {"padding_mode": "reflect"}, {"hidden": 0}, {"channels": 1.5}], ids=str
)
def test_impossible_blocks_are_refused(changes):
    with pytest.raises(UserError):
        lc.LipschitzResidual2d(**{"channels": 3, **changes})


def test_weights_of_nothing_and_of_extremes_stay_finite():
    for factor in (0.0, 1e-25, 1e12):
        block = lc.LipschitzResidual2d(2, 3)
        block.weight.data.mul_(factor)
        block.log_q.data.copy_(torch.tensor([-1e3, 0.0, 1e3]))
        x = torch.randn(2, 2, 4, 4)
        for mode in (True, False):
            y = block.train(mode)(x).detach()
            assert bool(y.isfinite().all()) and float((y[0] - y[1]).norm()) <= 1.0001 * float((x[0] - x[1]).norm())


def test_training_and_evaluation_compute_the_same_and_folding_keeps_it():
    model = nn.Sequential(
        random_block((5, 4), 3, "circular", 7)[0], random_block((5, 4), 3, "zeros", 7)[0], nn.Flatten()
    )
    x = torch.randn(3, 3, 5, 4, dtype=torch.float64)
    folded = lc.fold(model)
    assert torch.allclose(model.train()(x), model.eval()(x)) and torch.allclose(folded(x), model(x))
    assert not any(type(m).__module__.startswith("lowcurve") for m in folded.modules())


def test_surgery_replaces_the_activation_inside_and_nothing_else():
    model = nn.Sequential(lc.LipschitzResidual(4, 6, nn.ReLU()), nn.Linear(4, 3))
    low, report = lc.convert(model, torch.zeros(1, 4))
    assert isinstance(low[0].activation, lc.CenteredSoftplus) and isinstance(low[0], lc.LipschitzResidual)
    assert report.summary() == "1 ReLU -> CenteredSoftplus; 1 left"

"""The promise of `residual` in float32: some eigenvalue of the true Hessian lies within it, and the value is below."""

import pytest
import torch
from torch import Tensor, nn

import lowcurve as lc
from tests.geometry.conftest import dense_hessians


def nets() -> list[nn.Module]:
    """Nets from curved to almost linear: the Hessian from 1 down to 1e-6 of the gradient."""
    made = []
    for seed, beta in enumerate([30.0, 3.0, 0.3, 3e-2, 3e-3, 3e-4, 3e-5] * 2):
        torch.manual_seed(seed)
        act = lambda beta=beta: lc.CenteredSoftplus(beta)  # noqa: E731
        body = [nn.Linear(8, 24), act(), nn.Linear(24, 24), act()] if seed % 2 else [nn.Linear(8, 40), act()]
        made.append(nn.Sequential(*body, nn.Linear(body[-2].out_features, 4)).eval())
    return made


@pytest.mark.parametrize("of", ["margin", "loss", 2])
def test_the_residual_covers_rounding(of) -> None:
    outside, total = 0, 0
    for net in nets():
        x = torch.rand(40, 8)
        y = net(x).argmax(1)
        found = lc.curvature(net, x, y, of=of)
        double = net.double()

        def f(x: Tensor, y: Tensor, double=double) -> Tensor:
            z = double(x[None])[0]
            rest = torch.where(torch.arange(4) == y, -torch.inf, z)
            own = torch.where(torch.arange(4) == y, z, 0).sum()
            return {"margin": own - rest.amax(), "loss": torch.log1p((rest - own).exp().sum()), 2: z[2]}[of]

        eigenvalues = torch.linalg.eigvalsh(dense_hessians(f, x.double(), y))
        value, residual = found.hessian_norm.double(), found.residual.double()
        theta = (value.square() - residual.square()).clamp_min(0).sqrt()
        nearest = (eigenvalues.abs() - theta[:, None]).abs().amin(1)
        slack = 2e-7 * value  # the answer itself is in float32
        outside += int(((nearest > residual + slack) | (value > eigenvalues.abs().amax(1) + slack)).sum())
        total += len(x)
    assert total == 560 and outside == 0


def test_curvature_below_the_rounding_of_float32_is_found_in_float64() -> None:
    """Where β x = 19, σ' = σ (1 − σ) is zero in float32 and 7e-9 in fact: float32 calls the model affine."""
    net = nn.Sequential(lc.CenteredSoftplus(300.0), nn.Linear(2, 1, bias=False)).eval()
    nn.init.ones_(net[1].weight)
    x = torch.tensor([[0.0627, 0.1802], [0.004, 0.1], [0.2, 0.3]])
    found = lc.curvature(net, x, of=0)
    scaled = 300 * x.double()
    truth = (300 * torch.sigmoid(scaled) * torch.sigmoid(-scaled)).amax(1)
    assert torch.allclose(found.hessian_norm.double(), truth, rtol=1e-2)
    assert (found.residual <= 1e-2 * found.hessian_norm).all()

"""MaxMin and almost orthogonal layers against dense matrices, grids and attacks; the networks that have them."""

import itertools

import pytest
import torch
from torch import nn

import lowcurve as lc
from lowcurve.layers.maxmin import AlmostOrthogonal2d, MaxMin
from lowcurve.methods import build
from tests.guarantees.oracles import dense_matrix


@pytest.mark.parametrize("kernel,size,out", itertools.product((1, 3), ((1, 1), (4, 3)), (2, 7)))
def test_almost_orthogonal_layers_have_norm_one_at_most(kernel, size, out):
    torch.manual_seed(0)
    layer = AlmostOrthogonal2d(3, out, kernel)
    layer.weight.data.normal_(0, 5)
    layer.bias.data.zero_()
    assert float(torch.linalg.matrix_norm(dense_matrix(layer.eval(), (3, *size)), ord=2)) <= 1 + 1e-12


def test_maxmin_is_a_permutation_that_certificates_know():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 8), MaxMin(), nn.Linear(8, 6), MaxMin(), nn.Linear(6, 3)).eval()
    x = 2 * torch.randn(20, 2)
    assert torch.equal(MaxMin()(x).sort(1).values, x.sort(1).values)
    y = model(x).argmax(1)
    found = lc.certify(model, x, y)
    assert bool((found.radius == found.lipschitz_radius).all()) and float(found.radius.min()) > 0
    angles = torch.linspace(0, 6.2832, 360)
    rays = torch.stack([angles.cos(), angles.sin()], 1)
    for share in (0.5, 0.99, 0.9999):
        points = x.unsqueeze(1) + share * found.radius.float().view(-1, 1, 1) * rays
        assert bool((model(points.flatten(0, 1)).argmax(1).view(20, -1) == y.view(-1, 1)).all())


@pytest.mark.parametrize("method", ["lipschitz", "relu+margin", "maxmin"])
def test_no_attack_contradicts_a_network_of_slope_one(method):
    torch.manual_seed(0)
    model = build(method, "lipnet", (1, 8, 8), 3, width=4).eval()
    x = torch.rand(8, 1, 8, 8)
    y = model(x).argmax(1)
    found = lc.certify(model, x, y, local=True)
    assert lc.bounds(model, (1, 8, 8)).lipschitz.value <= 1.001 and float(found.radius.max()) > 0
    attacked = lc.attack(model, x, y, "apgd-t", eps=0.9999 * found.radius.float(), steps=20)
    assert not bool(attacked.success.any())
    folded = lc.fold(model)
    assert torch.allclose(folded(x), model(x), atol=1e-5)

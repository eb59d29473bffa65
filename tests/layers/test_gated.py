"""GELU, SiLU and Mish with a learned β: values, derivatives, constants and the plain form."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import gradcheck, gradgradcheck

import lowcurve as lc
from lowcurve.errors import UserError
from lowcurve.layers.gated import LearnedGELU, LearnedMish, LearnedSiLU
from lowcurve.layers.traits import constants, learned_parameters

X = torch.linspace(-30, 30, 200_001, dtype=torch.float64)
# Written again: xΦ(βx), xσ(βx).
FORMULAS = {
    LearnedGELU: lambda x, beta: x * torch.special.ndtr(beta * x),
    LearnedSiLU: lambda x, beta: x * torch.sigmoid(beta * x),
    LearnedMish: lambda x, beta: x * torch.tanh(F.softplus(beta * x)),
}


@pytest.mark.parametrize("kind", FORMULAS)
@pytest.mark.parametrize("beta", [1e-3, 0.3, 1.0, 7.0, 1e3])
def test_values_are_those_of_the_formula(kind, beta):
    layer = kind(beta).double()
    torch.testing.assert_close(layer(X).detach(), FORMULAS[kind](X, float(layer.beta.detach())))


@pytest.mark.parametrize("kind", FORMULAS)
def test_derivatives_in_x_and_beta(kind):
    x = torch.linspace(-2, 2, 9, dtype=torch.float64).requires_grad_()
    layer = kind(1.5).double()

    def apply(x, log_beta):
        return torch.func.functional_call(layer, {"log_beta": log_beta}, (x,))

    assert gradcheck(apply, (x, layer.log_beta)) and gradgradcheck(apply, (x, layer.log_beta))


def test_constants_refuse_what_leaves_the_range_of_numbers():
    with pytest.raises(UserError, match="β from"):
        constants(LearnedGELU(1e9))


@pytest.mark.parametrize("kind", FORMULAS)
def test_a_net_of_them_is_penalized_and_folds_to_plain_pytorch(kind):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), kind(2.0), nn.Linear(8, 3))
    assert float(lc.curvature_penalty(net, beta=0.5).detach()) == pytest.approx(1.0)
    assert learned_parameters(net) == {net[1].log_beta}
    plain = lc.fold(net)
    assert not any(type(module).__module__.startswith("lowcurve") for module in plain.modules())
    x = torch.randn(5, 4)
    torch.testing.assert_close(plain(x), net(x))
    again, _ = lc.convert(plain, x, activation="keep", spectral=False)
    torch.testing.assert_close(again(x), net(x))


def test_bounds_hold_on_a_net_of_learned_gelu():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), LearnedGELU(3.0), nn.Linear(8, 3)).double()
    x = torch.randn(40, 4, dtype=torch.float64)
    known = lc.bounds(net, (4,))
    for sample in x:
        jacobian, hessian = torch.func.jacrev(net)(sample), torch.func.hessian(net)(sample)
        assert torch.linalg.matrix_norm(jacobian, 2) <= float(known.lipschitz)
        assert (torch.linalg.matrix_norm(hessian, 2) <= known.logit_hessian).all()
    assert known.logit_hessian.isfinite().all()

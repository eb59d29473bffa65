"""Blocks of a network against dense Jacobians and Hessians in float64."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from typer.testing import CliRunner

import lowcurve as lc
from lowcurve.cli import app
from lowcurve.errors import UserError
from tests.surgery.zoo import ZOO


def transformer() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    net = lc.MODELS["vit"](num_classes=3, in_channels=1, width=8, activation=nn.GELU, image_size=8).double().eval()
    with torch.no_grad():
        for block in net[2:6]:
            block.attention[1].inner.weight.mul_(3)  # so that attention attends
    return net, torch.rand(2, 1, 8, 8, dtype=torch.float64), torch.tensor([0, 2])


def test_attention_mlp_and_norms_against_dense_truth() -> None:
    """The input h of each block and u = ∂f/∂φ come from the network cut in two at the block, by hand."""
    net, x, y = transformer()
    found = lc.block_geometry(net, x, y, blocks=["3.attention.1", "3.mlp", "3"], tol=1e-8, max_iterations=60)
    third = net[3]
    for i in range(2):
        with torch.no_grad():
            before = net[:3](x[i : i + 1])
            middle = before + third.attention(before)
            inputs = {
                "3.attention.1": (third.attention[1], third.attention[0](before)),
                "3.mlp": (third.mlp, middle),
                "3": (third, before),
            }
        rest = {
            "3.attention.1": lambda out: net[4:]((z := before + out) + third.mlp(z)),  # noqa: B023
            "3.mlp": lambda out: net[4:](middle + out),  # noqa: B023
            "3": lambda out: net[4:](out),
        }
        for name, (block, h) in inputs.items():
            out = block(h).detach().requires_grad_()
            (slope,) = torch.autograd.grad(F.cross_entropy(rest[name](out), y[i : i + 1]), out)
            u = slope / slope.norm()
            with sdpa_kernel(SDPBackend.MATH):
                jacobian = torch.func.jacrev(block)(h).reshape(32, 32)
                gradient = torch.func.grad(lambda z: (u * block(z)).sum())(h)  # noqa: B023
                hessian = torch.func.hessian(lambda z: (u * block(z)).sum())(h).reshape(32, 32)  # noqa: B023
            row = found[name]
            truth = torch.linalg.matrix_norm(hessian, 2)
            assert row.lipschitz[i].item() == pytest.approx(torch.linalg.matrix_norm(jacobian, 2).item(), rel=1e-6)
            assert row.gradient_norm[i].item() == pytest.approx(gradient.norm().item(), rel=1e-6)
            assert row.hessian_norm[i].item() == pytest.approx(truth.item(), rel=1e-5)
            assert row.curvature[i].item() == pytest.approx((truth / gradient.norm()).item(), rel=1e-5)


def test_estimates_stay_below_the_truth() -> None:
    net, x, y = transformer()
    exact = lc.block_geometry(net, x, y, blocks=["2.attention.1"], tol=1e-8, max_iterations=60)["2.attention.1"]
    rough = lc.block_geometry(net, x, y, blocks=["2.attention.1"], tol=1.0, max_iterations=2)["2.attention.1"]
    assert (rough.lipschitz <= exact.lipschitz * (1 + 1e-12)).all()
    assert (rough.hessian_norm <= exact.hessian_norm * (1 + 1e-12)).all()


def test_attentions_and_norms_are_found_and_nothing_is_left_behind() -> None:
    net, x, y = transformer()
    state = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    found = lc.block_geometry(net, x[:1], y[:1])
    assert [row.kind for row in found] == ["LayerNorm", "Attention", "LayerNorm"] * 4 + ["LayerNorm"]
    assert "Lipschitz" in str(found) and len(str(found).splitlines()) == 14
    assert all(torch.equal(tensor, state[name]) for name, tensor in net.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())


def test_a_layer_norm_has_the_slope_of_its_smallest_deviation() -> None:
    torch.manual_seed(0)
    norm, x = nn.LayerNorm(6, elementwise_affine=False, eps=0.0).double(), torch.randn(3, 6, dtype=torch.float64)
    found = lc.block_geometry(nn.Sequential(norm, nn.Linear(6, 2).double()), x, tol=1e-8)["0"]
    torch.testing.assert_close(found.lipschitz, 1 / x.std(dim=1, correction=0))


def test_q_k_and_v_of_one_tensor_move_together() -> None:
    torch.manual_seed(0)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention, self.head = nn.MultiheadAttention(4, 1, batch_first=True), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.attention(x, key=x, value=x, need_weights=False)[0].mean(1))

    net, x = Net().double(), torch.randn(1, 3, 4, dtype=torch.float64)
    found = lc.block_geometry(net, x, tol=1e-8, max_iterations=60)["attention"]
    with sdpa_kernel(SDPBackend.MATH):
        jacobian = torch.func.jacrev(lambda z: net.attention(z, z, z, need_weights=False)[0])(x).reshape(12, 12)
    assert found.lipschitz.item() == pytest.approx(torch.linalg.matrix_norm(jacobian, 2).item(), rel=1e-6)


@pytest.mark.parametrize("name", ["transformers ViT", "transformers Swin"])
def test_transformers_of_others(name: str) -> None:
    torch.manual_seed(0)
    found = lc.block_geometry(ZOO[name][0]().eval(), ZOO[name][1][:1], tol=0.1, max_iterations=6)
    assert any("Attention" in row.kind for row in found) and any(row.kind == "LayerNorm" for row in found)
    assert all(row.lipschitz.isfinite().all() and row.curvature.isfinite().all() for row in found)


def test_a_block_that_is_called_twice_or_does_nothing() -> None:
    torch.manual_seed(0)

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.spare = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = self.layer(x)
            self.spare(torch.ones_like(x).detach())
            return self.layer(x.mul_(2).tanh())  # what the block has returned is overwritten

    found = lc.block_geometry(Twice(), torch.rand(2, 3), blocks=("layer", "spare"))
    assert [row.name for row in found] == ["layer", "spare", "layer#2"]
    assert (found["spare"].gradient_norm == 0).all() and (found["layer"].curvature == 0).all()


def small_transformer() -> nn.Module:
    return lc.MODELS["vit"](in_channels=1, width=4, activation=nn.GELU, image_size=8)


def test_the_command_line_shows_blocks() -> None:
    words = ["--data", "digits", "--samples", "2", "--stability", "0", "--blocks", "1"]
    shown = CliRunner().invoke(app, ["measure", "tests.geometry.test_blocks:small_transformer", *words]).output
    assert sum(" Attention " in line for line in shown.splitlines()) == 4 and "Lipschitz" in shown


def test_unknown_blocks_are_refused() -> None:
    net, x, _ = transformer()
    for bad in (["nothing"], "2", [3], [], 3):
        with pytest.raises(UserError, match="names of modules"):
            lc.block_geometry(net, x, blocks=bad)

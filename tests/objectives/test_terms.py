"""Each loss term against a formula that is written again here, sample by sample, in float64."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lowcurve as lc
from lowcurve.errors import UserError
from lowcurve.layers.normalized import normalized_layers, standing_still
from lowcurve.objectives.adversarial import adversarial_examples, ascend, uniform_in_ball
from lowcurve.objectives.cure import cure_direction, cure_penalty
from lowcurve.objectives.gradient import input_gradient, largest_norm
from lowcurve.objectives.replay import Replay


def smooth_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Softplus(beta=3.0), nn.Linear(8, 4)).double()


def samples(count: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return (
        torch.rand(count, 6, generator=generator, dtype=torch.float64),
        torch.randint(4, (count,), generator=generator),
    )


def test_curvature_penalty_is_the_weighted_sum_of_beta_and_abs_log_gamma() -> None:
    model = nn.Sequential(
        lc.CenteredSoftplus(init_beta=2.0),
        lc.LipschitzBatchNorm2d(3, init_gamma=4.0),
        lc.CenteredSoftplus(init_beta=7.0),
        lc.LipschitzBatchNorm1d(3, init_gamma=0.5),
    )
    value = lc.curvature_penalty(model, beta=0.3, gamma=0.2)
    value.backward()
    assert float(value.detach()) == pytest.approx(0.3 * 9 + 0.2 * (math.log(4) + math.log(2)), rel=1e-6)
    assert float(model[0].log_beta.grad) == pytest.approx(0.3 * 2.0, rel=1e-6)  # dβ/dlog β = β
    assert float(model[1].log_gamma.grad) == pytest.approx(0.2, rel=1e-6)
    assert float(model[3].log_gamma.grad) == pytest.approx(-0.2, rel=1e-6)


def test_curvature_penalty_counts_a_shared_layer_once_and_a_plain_net_as_zero() -> None:
    shared = lc.CenteredSoftplus(init_beta=2.0)
    assert float(lc.curvature_penalty(nn.Sequential(shared, shared), beta=1.0).detach()) == pytest.approx(2.0)
    assert float(lc.curvature_penalty(nn.Linear(2, 2))) == 0.0


def test_gradient_penalty_is_the_mean_of_per_sample_squared_norms() -> None:
    net, (x, y) = smooth_net(), samples()
    x.requires_grad_()
    value = lc.gradient_penalty(F.cross_entropy(net(x), y, reduction="none"), x)
    gradients = [
        torch.func.grad(lambda z, label: F.cross_entropy(net(z[None]), label[None]))(sample, label)
        for sample, label in zip(x.detach(), y, strict=True)
    ]
    expected = sum(float(gradient.detach().square().sum()) for gradient in gradients) / len(gradients)
    assert float(value.detach()) == pytest.approx(expected, rel=1e-12)


def test_gradient_penalty_has_the_derivative_that_differences_show() -> None:
    net, (x, y) = smooth_net(), samples()
    weight = net[0].weight

    def penalty() -> torch.Tensor:
        z = x.clone().requires_grad_()
        return lc.gradient_penalty(F.cross_entropy(net(z), y, reduction="none"), z)

    (analytic,) = torch.autograd.grad(penalty(), weight)
    for i, j in ((0, 0), (3, 2), (7, 5)):
        with torch.no_grad():
            weight[i, j] += 1e-6
        above = float(penalty().detach())
        with torch.no_grad():
            weight[i, j] -= 2e-6
        below = float(penalty().detach())
        with torch.no_grad():
            weight[i, j] += 1e-6
        assert float(analytic[i, j]) == pytest.approx((above - below) / 2e-6, rel=1e-5, abs=1e-9)


def test_penalties_do_not_depend_on_the_batch_size() -> None:
    net, (x, y) = smooth_net(), samples(4)

    def terms(x: torch.Tensor, y: torch.Tensor) -> tuple[float, float]:
        x = x.clone().requires_grad_()
        here = input_gradient(F.cross_entropy(net(x), y, reduction="none"), x)
        z = (x + cure_direction(here, 0.3)).detach().requires_grad_()
        there = input_gradient(F.cross_entropy(net(z), y, reduction="none"), z)
        return float(here.square().sum(1).mean().detach()), float(cure_penalty(there, here).detach())

    assert terms(torch.cat([x, x]), torch.cat([y, y])) == pytest.approx(terms(x, y), rel=1e-12)


def test_gradient_penalty_refuses_a_mean_loss_and_an_input_without_gradient() -> None:
    net, (x, y) = smooth_net(), samples()
    with pytest.raises(UserError, match="reduction='none'"):
        lc.gradient_penalty(F.cross_entropy(net(x), y), x.requires_grad_())
    with pytest.raises(UserError, match="requires_grad_"):
        lc.gradient_penalty(F.cross_entropy(net(x.detach()), y, reduction="none"), x.detach())


def test_cure_of_a_quadratic_is_the_hessian_along_z() -> None:
    generator = torch.Generator().manual_seed(2)
    root = torch.randn(6, 6, generator=generator, dtype=torch.float64)
    hessian, x = root @ root.T, samples()[0].requires_grad_()

    def gradient(z: torch.Tensor) -> torch.Tensor:
        return input_gradient((z @ hessian * z).sum(1) / 2, z)

    here = gradient(x)
    z = cure_direction(here, 0.7)
    assert torch.allclose(z.norm(dim=1), torch.full((5,), 0.7, dtype=torch.float64))
    there = gradient((x + z).detach().requires_grad_())
    expected = (z @ hessian).square().sum(1).mean()
    assert float(cure_penalty(there, here).detach()) == pytest.approx(float(expected), rel=1e-10)


def test_cure_direction_of_a_vanishing_gradient_is_zero() -> None:
    assert torch.equal(cure_direction(torch.zeros(2, 3), 1.0), torch.zeros(2, 3))


def test_ascent_on_a_linear_loss_goes_to_the_far_end_of_the_ball() -> None:
    slope = torch.tensor([3.0, -4.0, 0.0])
    x = torch.full((7, 3), 0.5)
    torch.manual_seed(0)
    moved = ascend(lambda z: (z @ slope).sum(), x, eps=0.1, steps=10)
    assert (moved - x).norm(dim=1).max() <= 0.1 + 1e-6
    assert ((moved - x) @ slope / 5).min() > 0.95 * 0.1


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_adversarial_examples_stay_in_ball_and_box_raise_the_loss_and_leave_no_trace(mode: str) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    x, y = torch.rand(16, 1, 8, 8), torch.randint(3, (16,))
    x[0] = 0  # on the edge of the box
    before = {name: value.clone() for name, value in net.state_dict().items()}
    moved = adversarial_examples(net, x, y, eps=0.5, steps=5, mode=mode)
    assert (moved - x).flatten(1).norm(dim=1).max() <= 0.5 + 1e-5
    assert moved.min() >= 0 and moved.max() <= 1
    after = net.state_dict()
    assert net.training and all(parameter.requires_grad for parameter in net.parameters())
    assert all(torch.equal(after[name], value) for name, value in before.items())
    net.train(mode == "train")
    with torch.no_grad():
        assert F.cross_entropy(net(moved), y) > F.cross_entropy(net(x), y) + 0.05


def test_eval_mode_attack_is_the_same_for_every_batch_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lowcurve.objectives.adversarial.uniform_in_ball", lambda x, eps: torch.zeros_like(x))
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Softplus(), nn.Linear(8, 3)).double()
    x, y = torch.rand(8, 6, dtype=torch.float64), torch.randint(3, (8,))
    whole = adversarial_examples(net, x, y, eps=0.2, steps=3)
    halves = [adversarial_examples(net, x[part], y[part], eps=0.2, steps=3) for part in (slice(3), slice(3, 8))]
    assert torch.allclose(whole, torch.cat(halves), atol=1e-12)


def test_the_start_is_uniform_in_the_ball() -> None:
    torch.manual_seed(0)
    radii = uniform_in_ball(torch.zeros(20_000, 3), 2.0).norm(dim=1)
    assert radii.max() <= 2.0 + 1e-5
    assert float((radii / 2).pow(3).mean()) == pytest.approx(0.5, abs=0.01)  # (r/ε)³ is uniform on [0, 1]


def test_largest_norm_of_zero_is_positive() -> None:
    assert 0 < float(largest_norm(torch.zeros(3, 2))) < 1e-15
    assert float(largest_norm(torch.tensor([[3.0, 4.0], [1.0, 0.0]]))) == 5.0


class TestReplay:
    def net(self) -> nn.Module:
        torch.manual_seed(0)
        layers = (nn.Linear(6, 8), nn.Dropout(0.5), lc.LipschitzBatchNorm1d(8), lc.CenteredSoftplus())
        return nn.Sequential(*layers, lc.spectral_norm(nn.Linear(8, 3)))

    def test_it_repeats_the_first_pass_to_the_bit(self) -> None:
        net, x = self.net(), torch.rand(16, 6)
        with standing_still(normalized_layers(net)):
            replay = Replay(net)
            first = net(x)
            assert not torch.equal(net(x), first)  # noise and buffers have moved on
            assert torch.equal(replay(x), first)
            assert torch.equal(replay(x), first)

    def test_it_changes_neither_buffers_nor_generator(self) -> None:
        net, x = self.net(), torch.rand(16, 6)
        with standing_still(normalized_layers(net)):
            replay = Replay(net)
            net(x)
            buffers, noise = [buffer.clone() for buffer in net.buffers()], torch.random.get_rng_state()
            replay(x + 0.1)
        assert all(torch.equal(a, b) for a, b in zip(net.buffers(), buffers, strict=True))
        assert torch.equal(torch.random.get_rng_state(), noise)

    def test_graphs_of_both_passes_can_be_backpropagated_together(self) -> None:
        net, x = self.net(), torch.rand(16, 6)
        with standing_still(normalized_layers(net)):
            replay = Replay(net)
            (net(x).square().mean() + replay(x + 0.1).square().mean()).backward()
        assert all(torch.isfinite(parameter.grad).all() for parameter in net.parameters())

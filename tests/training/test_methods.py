"""Methods: what each changes in a network, how they join, and which parameters decay."""

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrize import is_parametrized

import lowcurve as lc
from lowcurve.errors import UserError
from lowcurve.methods import METHODS, build, find_method
from lowcurve.training.config import TrainConfig
from lowcurve.training.optimizer import learning_rate, make_optimizer


def parts(method: str) -> set[str]:
    """What a method's network is made of, read off its modules."""
    net = build(method, "resnet18", (3, 16, 16), 10, width=4)
    found = set()
    for module in net.modules():
        if isinstance(module, nn.ReLU):
            found.add("relu")
        elif isinstance(module, nn.Softplus):
            found.add(f"softplus-{module.beta:g}")
        elif isinstance(module, lc.CenteredSoftplus):
            found.add("learned")
        elif isinstance(module, lc.LipschitzBatchNorm2d):
            found.add("gamma")
        elif is_parametrized(module):
            found.add("spectral")
    return found


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("standard", {"softplus-1000"}),
        ("relu", {"relu"}),
        ("lcnn", {"learned", "gamma", "spectral"}),
        ("lcnn+gradreg+adv", {"learned", "gamma", "spectral"}),
        ("gradreg", {"softplus-1000"}),
        ("relu+gradreg", {"relu"}),
        ("softplus-wd", {"softplus-10"}),
        ("convsn-only", {"softplus-1000", "spectral"}),
        ("gbn-only", {"softplus-1000", "gamma"}),
        ("csoftplus-only", {"learned"}),
        ("minimal", {"learned"}),
        ("convsn-only+gbn-only+csoftplus-only", {"learned", "gamma", "spectral"}),
    ],
)
def test_architectures(method: str, expected: set[str]) -> None:
    assert parts(method) == expected


def test_every_row_of_the_paper_has_a_method() -> None:
    rows = "standard relu lcnn gradreg lcnn+gradreg cure softplus-wd adv cure+gradreg lcnn+gradreg+adv"
    assert set(f"{rows} convsn-only gbn-only csoftplus-only minimal".split()) <= set(METHODS)
    assert METHODS["lcnn+gradreg+adv"].terms == ("curvature", "gradient", "adversarial")


def test_joining_is_a_union_and_order_does_not_matter_to_the_network() -> None:
    assert find_method("gradreg+lcnn").spectral and set(find_method("gradreg+lcnn").terms) == {"curvature", "gradient"}
    assert find_method("lcnn+lcnn").terms == ("curvature",)
    with pytest.raises(UserError, match="leave one of them out"):
        find_method("softplus-wd+relu")
    with pytest.raises(UserError, match="unknown model"):
        build("lcnn", "resnet", (3, 8, 8), 10)


def test_beta_and_gamma_do_not_decay_and_everything_is_trained_once() -> None:
    net = build("lcnn", "resnet18", (3, 16, 16), 10, width=4)
    optimizer = make_optimizer(net, TrainConfig())
    decayed, kept = optimizer.param_groups
    assert (decayed["weight_decay"], kept["weight_decay"]) == (5e-4, 0.0)
    assert len(kept["params"]) == 17 + 20  # activations and batch norms of a ResNet-18
    assert all(parameter.ndim == 0 for parameter in kept["params"])
    members = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
    assert sorted(members) == sorted(id(parameter) for parameter in net.parameters())


class TestParameterGroups:
    def names(self, net: nn.Module, group: int) -> set[str]:
        chosen = {id(parameter) for parameter in lc.parameter_groups(net)[group]["params"]}
        return {name for name, parameter in net.named_parameters() if id(parameter) in chosen}

    def test_beta_gamma_biases_and_norm_weights_do_not_decay(self) -> None:
        affine = lc.LipschitzBatchNorm1d(4, affine=True)
        net = nn.Sequential(lc.spectral_norm(nn.Linear(3, 4)), affine, lc.CenteredSoftplus(), nn.LayerNorm((1, 4)))
        assert self.names(net, 0) == {"0.parametrizations.weight.original"}
        assert self.names(net, 1) == {name for name, _ in net.named_parameters()} - self.names(net, 0)
        assert [group["weight_decay"] for group in lc.parameter_groups(net, 0.1)] == [0.1, 0.0]

    def test_frozen_parameters_are_left_out_and_shared_ones_counted_once(self) -> None:
        layer = nn.Linear(3, 3)
        net = nn.Sequential(layer, layer, nn.Linear(3, 3).requires_grad_(False))
        assert (self.names(net, 0), self.names(net, 1)) == ({"0.weight"}, {"0.bias"})
        torch.optim.AdamW(lc.parameter_groups(net))

    def test_what_it_cannot_take_is_refused(self) -> None:
        with pytest.raises(UserError, match="expected model as an nn"):
            lc.parameter_groups([nn.Linear(2, 2)])
        for decay in (-1.0, float("nan"), float("inf")):
            with pytest.raises(UserError, match="weight_decay"):
                lc.parameter_groups(nn.Linear(2, 2), decay)


@pytest.mark.parametrize("epochs", [8, 40, 200])
def test_the_rate_falls_after_three_quarters_and_seven_eighths(epochs: int) -> None:
    rates = [learning_rate(TrainConfig(epochs=epochs), epoch / epochs) for epoch in range(epochs)]
    expected = [0.1] * (epochs * 6 // 8) + [0.01] * (epochs // 8) + [0.001] * (epochs // 8)
    assert rates == pytest.approx(expected)


def test_one_step_moves_beta_by_its_penalty_alone() -> None:
    """Under λβ Σβ alone β(t) follows dlog β = −lr λ β; weight decay of log β would add to it."""
    net = nn.Sequential(lc.CenteredSoftplus(init_beta=5.0))
    optimizer = make_optimizer(net, TrainConfig(momentum=0.0))
    lc.curvature_penalty(net, beta=1e-2).backward()
    optimizer.step()
    assert float(net[0].log_beta.detach()) == pytest.approx(torch.log(torch.tensor(5.0)).item() - 0.1 * 1e-2 * 5)

"""The loss and the gradient of every method against a reference that is written again here, in float64."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lowcurve.methods import METHODS, build, columns, find_method
from lowcurve.training.config import MethodConfig, method_section
from lowcurve.training.step import training_step

NUMBERS = {"lambda_beta": 0.02, "lambda_gamma": 0.03, "lambda_grad": 0.5, "lambda_cure": 0.7, "cure_step": 0.4}
LAYOUTS = {"mlp": (1, 4, 4), "resnet18": (1, 8, 8)}


def batch(shape: tuple[int, ...], count: int = 6) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(3)
    x = torch.rand(count, *shape, generator=rng, dtype=torch.float64)
    return x, torch.randint(3, (count,), generator=rng)


def network(method: str, model: str) -> nn.Module:
    torch.manual_seed(0)
    return build(method, model, LAYOUTS[model], 3, width=4).double().train()


def reference_loss(net: nn.Module, x: Tensor, y: Tensor, terms: tuple[str, ...], c: MethodConfig) -> Tensor:
    """CE + λβ Σβ + λγ Σ|log γ| + λ_grad mean‖g‖² + λ_cure mean‖g(x+z) − g(x)‖², plainly; buffers move as they like."""

    def gradient(z: Tensor) -> Tensor:
        start = {name: value.clone() for name, value in buffers.items()}
        loss = lambda u: F.cross_entropy(torch.func.functional_call(net, start, (u,)), y) * len(y)  # noqa: E731
        return torch.autograd.grad(loss(z), z, create_graph=True)[0]

    buffers = {name: value.clone() for name, value in net.named_buffers()}
    x = x.clone().requires_grad_()
    logits = net(x)
    if "certified" in terms:  # CE(κ z / ‖∇m‖), m = z_y − max over the others, sample by sample
        margins = torch.stack(
            [row[k] - max(row[c] for c in range(3) if c != k) for row, k in zip(logits, y, strict=True)]
        )
        slopes = torch.autograd.grad(margins.sum(), x, create_graph=True)[0]
        logits = torch.stack([c.sharpness * z / s.square().sum().sqrt() for z, s in zip(logits, slopes, strict=True)])
    if "margin" in terms:
        logits = torch.stack(
            [(row - c.offset * torch.eye(3).double()[k]) / c.temperature for row, k in zip(logits, y, strict=True)]
        )
    total = F.cross_entropy(logits, y)
    if "curvature" in terms:
        for module in net.modules():
            if hasattr(module, "log_beta"):  # centered softplus, or a gate that learns
                total = total + c.lambda_beta * module.beta
            elif hasattr(module, "gamma"):
                total = total + c.lambda_gamma * module.gamma.log().abs()
    if "gradient" in terms:
        total = total + c.lambda_grad * (gradient(x) ** 2).sum() / len(y)
    if "cure" in terms:
        here = gradient(x)
        signs = here.detach().sign()
        lengths = torch.stack([row.norm() for row in signs])
        z = torch.stack([c.cure_step * row / length for row, length in zip(signs, lengths, strict=True)])
        total = total + c.lambda_cure * ((gradient(x + z) - here) ** 2).sum() / len(y)
    return total


@pytest.mark.parametrize("model", LAYOUTS)
@pytest.mark.parametrize("method", [name for name in METHODS if "adversarial" not in METHODS[name].terms])
def test_loss_and_gradient_equal_the_reference(method: str, model: str) -> None:
    net, (x, y), terms = network(method, model), batch(LAYOUTS[model]), METHODS[method].terms
    numbers = method_section()(**NUMBERS)
    twin = copy.deepcopy(net)
    values = training_step(net, x, y, method, NUMBERS)
    expected = reference_loss(twin, x, y, terms, numbers)
    expected.backward()
    assert float(values["loss"]) == pytest.approx(float(expected.detach()), rel=1e-9)
    assert list(values) == [*sorted(columns(METHODS[method])[:-2], key=list(values).index), "loss", "accuracy"]
    assert set(values) == set(columns(METHODS[method]))
    for (name, mine), theirs in zip(net.named_parameters(), twin.parameters(), strict=True):
        difference = float((mine.grad - theirs.grad).norm())
        assert difference <= 1e-7 * (1 + float(theirs.grad.norm())), name


def test_adversarial_training_takes_every_term_at_the_adversarial_input(monkeypatch: pytest.MonkeyPatch) -> None:
    net, (x, y) = network("lcnn+gradreg+adv", "mlp"), batch(LAYOUTS["mlp"])
    moved = (x + 0.05).clamp(0, 1)
    seen: dict[str, object] = {}

    def fake(model: nn.Module, x: Tensor, y: Tensor, **options: object) -> Tensor:
        seen.update(options)
        return moved

    monkeypatch.setattr("lowcurve.objectives.adversarial.adversarial_examples", fake)
    numbers = method_section()(**NUMBERS)
    values = training_step(net, x, y, "lcnn+gradreg+adv", NUMBERS)
    expected = reference_loss(network("lcnn+gradreg+adv", "mlp"), moved, y, ("curvature", "gradient"), numbers)
    assert float(values["loss"]) == pytest.approx(float(expected.detach()), rel=1e-9)
    assert seen == {"eps": 0.1, "steps": 3, "mode": "eval"}


def test_adversarial_step_trains_on_examples_of_a_larger_loss() -> None:
    net, (x, y) = network("adv", "mlp").float(), batch(LAYOUTS["mlp"])
    x = x.float()
    torch.manual_seed(0)
    hard = training_step(net, x, y, "adv", {"adversarial_eps": 1.0, "adversarial_steps": 5})
    plain = training_step(net, x, y, "standard")
    assert hard["cross_entropy"] > plain["cross_entropy"] + 1e-3


def test_finite_differences_leave_alone_what_the_forward_does_not_use() -> None:
    net = build("lcnn", "mlp", (2,), 3, width=4).train()
    net.spare = nn.Parameter(torch.ones(2))
    training_step(net, torch.rand(5, 2), torch.arange(5) % 3, "lcnn+gradreg", {"gradient": "finite"})
    assert net.spare.grad is None  # a zero would let weight decay pull at it
    assert all(parameter.grad is not None for parameter in net.parameters() if parameter is not net.spare)


@pytest.mark.parametrize("model", LAYOUTS)
@pytest.mark.parametrize(("init_beta", "norm"), [(1.0, 2), (5.0, 2), (10.0, 2), (5.0, 1)])
def test_finite_differences_are_within_one_percent_of_double_backprop(model: str, init_beta: float, norm: int) -> None:
    """In float32, on the gradient of the penalty alone, batch statistics and power iteration included."""
    shape, method = {"mlp": (1, 4, 4), "resnet18": (1, 16, 16)}[model], find_method("lcnn+gradreg")
    torch.manual_seed(0)
    start = {"init_beta": init_beta, "lambda_beta": 0, "lambda_gamma": 0, "lambda_grad": 6.1e-3, "gradient_norm": norm}
    nets = [build(method, model, shape, 3, width=4, coefficients=start).train()]
    nets += [copy.deepcopy(nets[0]), copy.deepcopy(nets[0])]
    x, y = batch(shape, 32)
    gradients = []
    for net, change in zip(nets, ({}, {"gradient": "finite"}, {"lambda_grad": 0}), strict=True):
        training_step(net, x.float(), y, method, start | change)
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in net.parameters()]))
    exact, finite, plain = gradients
    assert (finite - exact).norm() <= 0.01 * (exact - plain).norm()
    for (name, a), b in zip(nets[0].named_buffers(), nets[1].buffers(), strict=True):
        assert torch.equal(a, b), name  # running statistics and singular vectors move once


def test_a_step_replaces_gradients_and_moves_buffers_once() -> None:
    net, (x, y) = network("cure+gradreg", "resnet18"), batch(LAYOUTS["resnet18"])
    twin = copy.deepcopy(net)
    for _ in range(2):
        training_step(net, x, y, "cure+gradreg")
        training_step(twin, x, y, "standard")
    assert all(torch.equal(a, b) for a, b in zip(net.buffers(), twin.buffers(), strict=True))
    first = [parameter.grad.clone() for parameter in net.parameters()]
    training_step(net, x, y, "cure+gradreg")
    assert all(torch.allclose(a, b.grad) for a, b in zip(first, net.parameters(), strict=True))


def test_bfloat16_stays_near_float32() -> None:
    net, (x, y) = network("lcnn", "resnet18").float(), batch(LAYOUTS["resnet18"])
    twin = copy.deepcopy(net)
    full = training_step(net, x.float(), y, "lcnn")
    half = training_step(twin, x.float(), y, "lcnn", dtype=torch.bfloat16)
    assert float(half["loss"]) == pytest.approx(float(full["loss"]), rel=0.05)
    assert half["loss"].dtype == torch.float32

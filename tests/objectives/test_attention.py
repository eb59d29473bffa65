"""Where attention is differentiated twice it takes PyTorch's plain path; the fused ones still cannot be."""

from threading import Barrier, Event, Thread

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import lowcurve as lc
from lowcurve.errors import UserError
from lowcurve.training.step import training_step


class Heads(nn.Module):
    """Two tokens-to-tokens attentions, one by PyTorch's function and one by its module, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.torch = nn.Linear(8, 24), nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.own(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        x = x + F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.head(self.torch(x, x, x, need_weights=False)[0].mean(1))


def heads() -> tuple[Heads, Tensor, Tensor]:
    torch.manual_seed(0)
    return Heads().double(), torch.rand(4, 5, 8, dtype=torch.float64), torch.arange(4) % 3


def penalty(net: nn.Module, x: Tensor, y: Tensor, norm: int) -> Tensor:
    x = x.clone().requires_grad_()
    return lc.gradient_penalty(F.cross_entropy(net(x), y, reduction="none"), x, norm=norm)


def test_fused_attention_still_has_no_second_derivative() -> None:
    """Where this fails PyTorch has learned it, and `fast_double_backward` need not choose the plain path any more."""
    q = torch.rand(1, 1, 4, 8, requires_grad=True)
    out = F.scaled_dot_product_attention(q, q, q)
    assert type(out.grad_fn).__name__.startswith("ScaledDotProductFlash")  # or CPUs have no fused path any more
    (gradient,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="not implemented"):
        torch.autograd.grad(gradient.sum(), q)


def test_the_plain_path_is_taken_inside_the_context_and_there_alone() -> None:
    net, x, y = heads()
    with pytest.raises(UserError, match="fast_double_backward"):
        penalty(net, x, y, 2)
    with lc.fast_double_backward(), lc.fast_double_backward():
        penalty(net, x, y, 2).backward()
    with lc.fast_double_backward(twice=False), pytest.raises(UserError, match="fused attention"):
        penalty(net, x, y, 2)
    with pytest.raises(UserError, match="fused attention"):
        penalty(net, x, y, 2)


def test_threads_leave_the_choice_of_a_path_as_it_was() -> None:
    """One that enters first and leaves first must not undo, nor keep for ever, what the other asked for."""
    both, left, done = Barrier(2), Event(), []

    def first() -> None:
        with lc.fast_double_backward():
            both.wait(10)
        left.set()

    def second() -> None:
        with lc.fast_double_backward():
            both.wait(10)
            left.wait(10)
            done.append(torch.backends.cuda.flash_sdp_enabled())

    threads = [Thread(target=first), Thread(target=second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert done == [False] and torch.backends.cuda.flash_sdp_enabled()
    assert torch.backends.cuda.mem_efficient_sdp_enabled() and torch.backends.cuda.math_sdp_enabled()


@pytest.mark.parametrize(
    ("method", "coefficients"),
    [
        ("gradreg", {"lambda_grad": 0.1}),
        ("gradreg", {"lambda_grad": 0.1, "gradient_norm": 1}),
        ("cure", {"lambda_cure": 0.1}),
        ("certified", {}),
    ],
)
def test_steps_that_differentiate_twice_need_no_context(method: str, coefficients: dict[str, float]) -> None:
    """Their gradients are those of PyTorch's plain path."""
    net, x, y = heads()
    training_step(net, x, y, method, coefficients)
    found = [p.grad.clone() for p in net.parameters()]
    with sdpa_kernel(SDPBackend.MATH):
        training_step(net, x, y, method, coefficients)
    assert all(torch.allclose(a, p.grad, rtol=1e-10, atol=1e-12) for a, p in zip(found, net.parameters(), strict=True))


def test_only_what_is_differentiated_again_is_refused() -> None:
    """Attention that does not see x may be fused; a hardsigmoid that does has no second derivative either."""
    q, x = torch.rand(1, 1, 3, 8, requires_grad=True), torch.rand(2, 3, requires_grad=True)
    beside = F.scaled_dot_product_attention(q, q, q).mean()
    lc.gradient_penalty(beside * x.square().sum(1), x).backward()
    assert q.grad is not None
    with pytest.raises(UserError, match="fast_double_backward"):
        lc.gradient_penalty(F.hardsigmoid(x).sum(1), x)
    assert float(lc.gradient_penalty(F.hardsigmoid(x).sum(1), x, create_graph=False)) == pytest.approx(3 / 36)
    with lc.fast_double_backward():
        lc.gradient_penalty(F.hardsigmoid(x).sum(1), x)


@pytest.mark.parametrize("norm", [1, 2])
def test_the_penalty_of_attention_is_that_of_dense_gradients(norm: int) -> None:
    """Per sample, by `torch.func.grad` through matrix products that are written out; its derivative by differences."""
    net, x, y = heads()

    def dense(sample: Tensor, label: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            gradient = torch.func.grad(lambda z: F.cross_entropy(net(z[None]), label[None]))(sample)
        return gradient.abs().sum() if norm == 1 else gradient.square().sum()

    def truth() -> float:
        return sum(float(dense(sample, label).detach()) for sample, label in zip(x, y, strict=True)) / len(x)

    with lc.fast_double_backward():
        value = penalty(net, x, y, norm)
    assert float(value.detach()) == pytest.approx(truth(), rel=1e-12)
    (analytic,) = torch.autograd.grad(value, net.own.weight)
    for i, j in ((0, 0), (9, 3), (20, 7)):
        ends = []
        for step in (1e-6, -2e-6):
            with torch.no_grad():
                net.own.weight[i, j] += step
            ends.append(truth())
        with torch.no_grad():
            net.own.weight[i, j] += 1e-6
        assert float(analytic[i, j]) == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-4, abs=1e-9)


def test_curvature_of_attention_needs_no_context() -> None:
    net, x, y = heads()
    found = lc.curvature(net, x, y, tol=1e-6, max_iterations=60)

    def loss(sample: Tensor) -> Tensor:
        return F.cross_entropy(net(sample[None]), y[:1])

    with sdpa_kernel(SDPBackend.MATH):
        hessian = torch.func.hessian(loss)(x[0]).reshape(40, 40).detach()
    assert found.hessian_norm[0].item() == pytest.approx(torch.linalg.matrix_norm(hessian, 2).item(), rel=1e-6)


def test_other_norms_are_refused() -> None:
    x = torch.ones(2, 3, requires_grad=True)
    for norm in (0, 3, "1", 1.5, True):
        with pytest.raises(UserError, match="norm as a whole number from 1 to 2"):
            lc.gradient_penalty(x.square().sum(1), x, norm=norm)

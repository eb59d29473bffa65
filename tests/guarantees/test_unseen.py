"""What tracing and float64 do not show: precision and branches of a forward, gradients, numbers between two steps."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lowcurve as lc
from lowcurve.errors import UserError


class Written(nn.Module):
    """A model whose forward is a function of two layers."""

    def __init__(self, run: Callable[[nn.Module, nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.run = nn.Linear(4, 3), nn.Linear(4, 3), run

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self.first, self.last, x)


def in_bfloat16(first: nn.Module, last: nn.Module, x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return first(x)


def in_medium_precision(first: nn.Module, last: nn.Module, x: Tensor) -> Tensor:
    torch.set_float32_matmul_precision("medium")
    try:
        return first(x)
    finally:
        torch.set_float32_matmul_precision("highest")


def on_data(first: nn.Module, last: nn.Module, x: Tensor) -> Tensor:
    logits = first(x)
    if type(x) is Tensor and bool(((x[0] > 0.4) & (x[0] < 0.41)).all()):
        return -logits
    return logits


def half_without_gradient(first: nn.Module, last: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        steep = first(x)
    return F.softplus(steep) + last(x)


@pytest.mark.parametrize("run", [in_bfloat16, in_medium_precision, on_data])
def test_operations_that_a_trace_does_not_show_are_refused(run: Callable[..., Tensor]) -> None:
    """At zeros and bias alone all of them agree with float64, in every bit."""
    model, x = Written(run), torch.zeros(2, 4)
    model.first.bias.data = torch.tensor([0.0, 1.0, 0.5])
    with pytest.raises(UserError, match="in another way"):
        lc.certify(model, x, model(x).argmax(1))


def test_gradients_that_are_switched_off_are_refused_where_they_count() -> None:
    model, x = Written(half_without_gradient), torch.rand(2, 4)
    assert bool((lc.certify(model, x, model(x).argmax(1)).radius > 0).all())
    with pytest.raises(UserError, match="no_grad"):
        lc.explanation_bound(model, x, None, 0.1)


def softplus_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Softplus(), nn.Linear(4, 3))


@contextmanager
def globally(hook: Callable[..., object]) -> Iterator[None]:
    handle = nn.modules.module.register_module_full_backward_hook(hook)  # type: ignore[arg-type]
    try:
        yield
    finally:
        handle.remove()


def test_backward_hooks_are_refused_for_explanations() -> None:
    model, x = softplus_net(), torch.rand(2, 4)
    with globally(lambda _module, inside, _outside: tuple(grad.sign() for grad in inside)):
        assert bool((lc.certify(model, x, model(x).argmax(1)).radius > 0).all())
        with pytest.raises(UserError, match="global backward hook"):
            lc.explanation_bound(model, x, None, 0.1)
    model[1].register_full_backward_hook(lambda _module, inside, _outside: (inside[0].sign(),))
    with pytest.raises(UserError, match="backward hook"):
        lc.explanation_bound(model, x, None, 0.1)


def test_class_whose_forward_was_replaced_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps would be evaluated by the replaced forward, too."""
    model, x = softplus_net(), torch.rand(2, 4)
    monkeypatch.setattr(nn.Softplus, "forward", lambda self, x: torch.where(x > 0.5, -x, F.softplus(x)))
    with pytest.raises(UserError, match="forward was replaced"):
        lc.certify(model, x, model(x).argmax(1))


def test_forward_for_one_size_of_batch_is_refused() -> None:
    model = Written(lambda first, last, x: first(x.view(2, -1)))
    with pytest.raises(UserError, match="does not take"):
        lc.certify(model, torch.rand(2, 4), torch.zeros(2, dtype=torch.int64))


class Factors(nn.Module):
    """base(x) + Wx times factors whose product is 1, each a multiplication or a batch norm."""

    def __init__(self, factors: list[float], norms: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.base, layer = nn.Linear(4, 3), nn.Linear(4, 3, bias=False)
        self.branch, self.factors = nn.Sequential(layer), [] if norms else factors
        for factor in factors if norms else []:
            norm = nn.BatchNorm1d(3, eps=0.0)
            norm.weight.data.fill_(factor)
            self.branch.append(norm)

    def forward(self, x: Tensor) -> Tensor:
        h = self.branch(x)
        for factor in self.factors:
            h = h * factor
        return self.base(x) + h


@pytest.mark.parametrize("norms", [False, True])
@pytest.mark.parametrize("size", [1e29, 1e-29])
def test_overflow_between_factors_of_one_layer(norms: bool, size: float) -> None:
    """At 0 the branch is 0; beside it float32 gives infinity · 0, or 0, for what is Wx in real numbers."""
    model, x = Factors([size, size, 1 / size, 1 / size], norms).eval(), torch.zeros(1, 4)
    assert not torch.allclose(model(x + 0.01), model.double()(x.double() + 0.01).float())
    assert float(lc.certify(model.float(), x, model(x).argmax(1)).radius) == 0.0


def test_sum_behind_an_average_may_overflow() -> None:
    pooled = nn.Sequential(nn.Conv2d(1, 1, 1, bias=False), nn.AvgPool2d(16), nn.Flatten(), nn.Linear(1, 2))
    pooled[0].weight.data.fill_(1.0)
    pooled[3].weight.data, pooled[3].bias.data = torch.tensor([[1e-37], [0.0]]), torch.tensor([1.0, 0.0])
    x = torch.full((1, 1, 16, 16), 1.3e36)  # the sum is 3.3e38, a little below the largest number
    assert float(lc.certify(pooled, x, torch.tensor([0])).radius) == 0.0


def test_factors_that_float32_cannot_hold_are_refused() -> None:
    torch.manual_seed(0)
    block = lc.LipschitzResidual(4, hidden=8)
    block.weight.data *= 1e25  # 2/T is 0 in float32
    norm = lc.LipschitzBatchNorm1d(4, affine=True)
    norm.norm.weight.data.fill_(3e38)
    norm.norm.running_var.fill_(0.01)  # the steepest slope is infinite in float32
    for layer in (block, norm):
        model, x = nn.Sequential(layer, nn.Linear(4, 3)).eval(), torch.zeros(1, 4)
        with pytest.raises(UserError, match="cannot hold"):
            lc.certify(model, x, model(x).argmax(1))


def test_images_in_channels_last_are_certified_and_explained() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Softplus(), nn.Softplus(), nn.Flatten(), nn.Linear(48, 3))
    x = torch.rand(2, 2, 6, 6)
    other = x.to(memory_format=torch.channels_last)
    y = model(x).argmax(1)
    assert torch.allclose(lc.certify(model, other, y).radius, lc.certify(model, x, y).radius, rtol=1e-3)
    assert bool(lc.explanation_bound(model, other, y, 0.1).change.isfinite().all())

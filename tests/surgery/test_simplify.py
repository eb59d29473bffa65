"""Subclasses that compute what PyTorch's own layers compute are converted as these; others are refused."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lowcurve as lc
from lowcurve.errors import UserError
from lowcurve.surgery.simplify import own_forward, simplify

X = torch.rand(4, 3, 6, 6, generator=torch.Generator().manual_seed(0))


class OwnLinear(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.weight, self.bias)


class NormAct(nn.BatchNorm2d):
    """A batch norm with dropout and an activation behind it, as timm has it."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.drop, self.act = nn.Dropout(0.2), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.drop(super().forward(x)))


class Backwards(NormAct):
    def forward(self, x: Tensor) -> Tensor:
        return nn.BatchNorm2d.forward(self, self.act(x))


class Shifted(nn.BatchNorm2d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 1


class Adapted(nn.Linear):
    """An adapter: what its own weights add is zero at first."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.more = nn.Parameter(torch.zeros(sizes[1], sizes[0]))

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.weight + self.more, self.bias)


class Standardized(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return F.conv2d(x, weight, self.bias, self.stride, self.padding)


class SamePadding(nn.Conv2d):
    """Pads by the size of its input."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.pad(x, (0, 1 - x.shape[-1] % 2, 0, 1 - x.shape[-2] % 2)))


def net(norm: nn.Module, head: type[nn.Linear] = nn.Linear, conv: type[nn.Conv2d] = nn.Conv2d) -> nn.Module:
    torch.manual_seed(0)
    layers = (
        conv(3, 4, 3, stride=2),
        norm,
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        head(16, 8),
        nn.ReLU(),
        nn.Linear(8, 5),
    )
    return nn.Sequential(*layers).eval()


def test_a_batch_norm_with_an_activation_becomes_both() -> None:
    heard = []
    model = net(NormAct(4), OwnLinear)
    with torch.no_grad():
        model[1].weight.mul_(50)  # steeper than γ allows, so that what γ does shows
    model[1].register_forward_hook(lambda *_: heard.append(1))
    low, report = lc.convert(model, X, init_gamma=2.0)
    assert type(model[1]) is NormAct and type(model[4]) is OwnLinear  # the original stays as it is
    assert isinstance(low[1].norm, lc.LipschitzBatchNorm2d) and isinstance(low[1].act, lc.CenteredSoftplus)
    assert type(low[1].norm.norm) is nn.BatchNorm2d and {change.name for change in report.replaced} >= {"1.norm", "4"}
    heard.clear()
    out = low(X)
    assert heard == [1]
    torch.testing.assert_close(lc.fold(low)(X), out, atol=1e-5, rtol=1e-5)
    optimizer = torch.optim.SGD(low.train().parameters(), lr=0.1)
    low(X).square().mean().backward()
    optimizer.step()
    torch.testing.assert_close(lc.fold(low)(X), low.eval()(X), atol=1e-5, rtol=1e-5)


def test_at_large_beta_and_gamma_nothing_has_changed() -> None:
    model = net(NormAct(4), OwnLinear)
    low, _ = lc.convert(model, X, spectral=False, init_beta=1e6, init_gamma=1e6)
    torch.testing.assert_close(low(X), model(X), atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (net(Shifted(4)), "does more than normalize"),
        (net(Backwards(4)), "does more than normalize"),
        (net(nn.BatchNorm2d(4), Adapted), "hides what is done to the weight"),
        (net(nn.BatchNorm2d(4), conv=Standardized), "hides what is done to the weight"),
        (net(nn.BatchNorm2d(4), conv=SamePadding), "hides what is done to the weight"),
    ],
)
def test_what_computes_something_else_is_refused(model: nn.Module, message: str) -> None:
    with pytest.raises(UserError, match=message):
        lc.convert(model, X)


def test_what_is_skipped_is_not_looked_at() -> None:
    model = net(NormAct(4))
    low, _ = lc.convert(model, X, skip=["1"])
    assert type(low[1]) is NormAct
    assert own_forward(nn.BatchNorm2d(3)) is None and own_forward(model[1]) is nn.BatchNorm2d
    assert not simplify(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), ())

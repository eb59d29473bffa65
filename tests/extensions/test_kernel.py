"""Kernels for another kind of tensor from outside the package: one module of functions, given to `register`.

oneDNN's opaque tensors stand for a device of one's own: they have a dispatch key of their own, hold numbers, and
PyTorch's linear layers and convolutions know them, but none of lowcurve's operators does.
"""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lowcurve as lc
from lowcurve.kernels import ops, reference

if not torch.backends.mkldnn.is_available():
    pytest.skip("this PyTorch has no oneDNN", allow_module_level=True)

called: list[str] = []


def dense(value: Any) -> Any:
    return value.to_dense() if isinstance(value, Tensor) and value.is_mkldnn else value


def softplus(x: Tensor, log_beta: Tensor, shift: float) -> Tensor:
    called.append("softplus")
    return reference.softplus(dense(x), log_beta, shift).to_mkldnn()


def softplus_gradient(*arguments: Any) -> tuple[Tensor, Tensor | None]:
    called.append("softplus_gradient")
    to_x, to_beta = reference.softplus_gradient(*map(dense, arguments))
    return to_x.to_mkldnn(), to_beta


def net() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3)
    return lc.convert(nn.Sequential(*layers), torch.rand(1, 1, 8, 8))[0]


def gradients(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    loss = F.cross_entropy(dense(model(x)), y) + lc.curvature_penalty(model)
    return dict(zip(dict(model.named_parameters()), torch.autograd.grad(loss, list(model.parameters())), strict=True))


@pytest.fixture(scope="module", autouse=True)
def registered() -> None:
    with pytest.raises(RuntimeError):
        net()(torch.rand(6, 1, 8, 8).to_mkldnn())  # plain PyTorch, which stands in, does not know such tensors
    kernels = SimpleNamespace(softplus=softplus, softplus_gradient=softplus_gradient)
    ops.register("MkldnnCPU", cast(ModuleType, kernels))


def test_a_module_of_kernels_serves_the_layers() -> None:
    x, y = torch.rand(6, 1, 8, 8), torch.arange(6) % 3
    called.clear()
    expected = gradients(net(), x, y)
    assert not called  # other tensors go where they went
    found = gradients(net(), x.to_mkldnn(), y)
    assert called == ["softplus", "softplus_gradient"]
    for name, gradient in expected.items():
        assert torch.allclose(found[name], gradient, atol=1e-5), name


def trained(prepare: Callable[[Tensor], Tensor]) -> tuple[nn.Module, list[float]]:
    """Train the net for some steps on inputs that `prepare` moves; return it and its losses."""
    model, generator = net(), torch.Generator().manual_seed(1)
    optimizer = torch.optim.SGD(lc.parameter_groups(model), 0.1, momentum=0.9)
    losses = []
    for _ in range(12):
        x = torch.rand(24, 1, 8, 8, generator=generator)
        y = (3 * x.mean((1, 2, 3)) + x[:, 0, 0, 0]).long().clamp(max=2)
        loss = F.cross_entropy(dense(model(prepare(x))), y) + lc.curvature_penalty(model, beta=1e-3)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return model.eval(), losses


def test_what_they_train_is_measured_certified_and_saved_as_any_other(tmp_path: Path) -> None:
    called.clear()
    (found, losses), used = trained(Tensor.to_mkldnn), list(called)
    expected, plain_losses = trained(lambda x: x)
    assert used == 12 * ["softplus", "softplus_gradient"] == called
    assert losses == pytest.approx(plain_losses, rel=1e-4) and losses[-1] < losses[0]
    x = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(2))
    assert torch.equal(found(x).argmax(1), dense(found(x.to_mkldnn())).argmax(1))
    y = found(x).argmax(1)
    for measure in (lambda model: lc.curvature(model, x, y).curvature, lambda model: lc.certify(model, x, y).radius):
        assert torch.allclose(measure(found), measure(expected), rtol=1e-2)
    lc.save(found, tmp_path / "net")
    assert torch.equal(lc.load(tmp_path / "net", model=net())(x), found(x))

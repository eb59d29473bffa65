"""Kernels for another kind of tensor from outside the package: one module of functions, given to `register`.

oneDNN's opaque tensors stand for a device of one's own: they have a dispatch key of their own, hold numbers, and
PyTorch's linear layers and convolutions know them, but none of lowcurve's operators does.
"""

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


def test_a_module_of_kernels_serves_the_layers() -> None:
    x, y = torch.rand(6, 1, 8, 8), torch.arange(6) % 3
    with pytest.raises(RuntimeError):
        net()(x.to_mkldnn())  # plain PyTorch, which stands in, does not know such tensors
    kernels = SimpleNamespace(softplus=softplus, softplus_gradient=softplus_gradient)
    ops.register("MkldnnCPU", cast(ModuleType, kernels))
    expected = gradients(net(), x, y)
    assert not called  # other tensors go where they went
    found = gradients(net(), x.to_mkldnn(), y)
    assert called == ["softplus", "softplus_gradient"]
    for name, gradient in expected.items():
        assert torch.allclose(found[name], gradient, atol=1e-5), name

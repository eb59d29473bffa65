"""Small networks trained on digits once per session, and dense float64 truths about them."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

KINDS = [("mlp", 1000), ("mlp", 1), ("conv", 1000), ("conv", 1)]


@dataclass
class Trained:
    net: nn.Module  # float64, eval mode
    x: Tensor  # (16, 1, 8, 8) test samples, float64
    y: Tensor


def digits() -> tuple[Tensor, Tensor]:
    bunch = load_digits()
    return torch.tensor(bunch.images / 16, dtype=torch.float32).unsqueeze(1), torch.tensor(bunch.target)


def mlp(beta: float) -> nn.Module:
    hidden = [nn.Linear(64, 48), nn.Softplus(beta), nn.Linear(48, 48), nn.Softplus(beta)]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(48, 10))


def conv(beta: float) -> nn.Module:
    first = [nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Softplus(beta)]
    second = [nn.Conv2d(8, 8, 3, padding=1, stride=2), nn.BatchNorm2d(8), nn.Softplus(beta)]
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(128, 10))


def train(net: nn.Module, epochs: int = 4) -> nn.Module:
    x, y = digits()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for _ in range(epochs):
        for rows in torch.randperm(1500).split(64):
            optimizer.zero_grad()
            F.cross_entropy(net(x[rows]), y[rows]).backward()
            optimizer.step()
    return net.eval()


@pytest.fixture(scope="session")
def trained() -> dict[tuple[str, int], Trained]:
    state = torch.get_rng_state()
    torch.manual_seed(0)
    nets = {(kind, beta): train({"mlp": mlp, "conv": conv}[kind](beta)) for kind, beta in KINDS}
    torch.set_rng_state(state)
    x, y = digits()
    x, y = x[1500:1516].double(), y[1500:1516]
    return {key: Trained(net.double(), x, y) for key, net in nets.items()}


def dense_hessians(function: Callable[..., Tensor], x: Tensor, *args: Tensor) -> Tensor:
    """∇²f of each sample by torch.func, (N, d, d); `function` maps one sample (and what belongs to it) to a scalar."""
    d = x[0].numel()
    return torch.func.vmap(torch.func.hessian(function))(x, *args).reshape(len(x), d, d).detach()


def dense_norms(function: Callable[..., Tensor], x: Tensor, *args: Tensor) -> tuple[Tensor, Tensor]:
    """‖∇f‖₂ and ‖∇²f‖₂ of each sample."""
    gradients = torch.func.vmap(torch.func.grad(function))(x, *args).flatten(1).detach()
    return gradients.norm(dim=1), torch.linalg.eigvalsh(dense_hessians(function, x, *args)).abs().amax(dim=1)

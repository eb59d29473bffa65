"""Two nets trained on digits in a second or two: one with ReLU, one of low curvature, and test samples."""

import pytest
import torch
from torch import Tensor, nn

from lowcurve.data import load_dataset
from lowcurve.data.dataset import Split
from lowcurve.surgery.convert import convert


@pytest.fixture(scope="session")
def digits() -> Split:
    return load_dataset("digits").test.subset(100)


@pytest.fixture(scope="session")
def samples(digits: Split) -> tuple[Tensor, Tensor]:
    return digits.batch(slice(None))


def train(net: nn.Module, epochs: int = 12) -> nn.Module:
    """Train with Adam, and leave the global generator alone."""
    split = load_dataset("digits").train
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    for _ in range(epochs):
        for chosen in torch.randperm(len(split)).split(96):
            x, y = split.batch(chosen)
            loss = nn.functional.cross_entropy(net(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return net.eval()


def plain() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(12, 24, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(384, 10),
    )


@pytest.fixture(scope="session")
def nets() -> dict[str, nn.Module]:
    """Trained to 90 % and more."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        relu = train(plain())
        low_curvature, _ = convert(plain(), torch.zeros(1, 1, 8, 8))
        return {"relu": relu, "lcnn": train(low_curvature)}

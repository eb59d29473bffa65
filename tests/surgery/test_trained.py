"""An engineer has a trained net: surgery must not forget what it knows, and a little fine-tuning must pay off."""

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lowcurve import MODELS, convert
from lowcurve.data import load_dataset
from lowcurve.geometry.compare import compare


@cache
def digits() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    dataset = load_dataset("digits")
    return dataset.train.batch(slice(None)), dataset.test.batch(slice(None))


def fit(net: nn.Module, epochs: int, lr: float) -> nn.Module:
    (x, y), _ = digits()
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    generator = torch.Generator().manual_seed(0)
    batches = [chosen for _ in range(epochs) for chosen in torch.randperm(len(x), generator=generator).split(64)]
    # At a constant rate the last steps leave anything from 86 to 94 %, by how a version of PyTorch rounds.
    falling = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.01, total_iters=len(batches))
    net.train()
    for chosen in batches:
        optimizer.zero_grad()
        F.cross_entropy(net(x[chosen]), y[chosen]).backward()
        optimizer.step()
        falling.step()
    return net.eval()


@cache
def trained() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return fit(MODELS["resnet18"](in_channels=1, width=4, image_size=8), epochs=6, lr=0.05)


def test_spectral_norm_forgets_nothing():
    (x, _), (test, labels) = digits()
    low, report = convert(trained(), x[:2], activation=False, init_gamma=1e6)
    before = trained()(test)
    assert (before.argmax(1) == labels).float().mean() > 0.9
    assert not report.factors()
    torch.testing.assert_close(low(test), before, rtol=1e-3, atol=1e-4)
    assert torch.equal(low(test).argmax(1), before.argmax(1))


def test_two_epochs_of_fine_tuning_make_it_low_curvature():
    (x, _), (test, labels) = digits()
    low = fit(convert(trained(), x[:2])[0], epochs=2, lr=0.02)
    rows = {row.quantity: row for row in compare(trained(), low, test[:64], labels[:64])}
    assert rows["accuracy, %"].after >= rows["accuracy, %"].before - 3
    for quantity in ("curvature of margin, median", "Hessian norm of margin, median", "curvature of loss, mean"):
        assert rows[quantity].after < rows[quantity].stand_in / 2

"""Which last layer should an LCNN have, and what becomes of its logits, β, γ and σ while it trains?

    python scripts/last_layer.py [--data cifar100] [--epochs 10] [--width 16] [--samples 500] [--forms free unit]

Trains three forms as the preset `long` does, for fewer epochs: a free last layer, one of unit norm as in the paper, and
one of unit norm with a learned scale behind it, which normalized curvature does not see. After each epoch it prints how
they stand on a tenth of the training images, held out; the test images stay unread.
"""

import argparse
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lowcurve as lc
from lowcurve.data import Dataset, load_dataset
from lowcurve.data.loader import batches
from lowcurve.experiments.presets import PRESETS
from lowcurve.training.log import constants
from lowcurve.training.loop import accuracy_and_loss
from lowcurve.training.machine import flushed_denormals, kept_memory
from lowcurve.training.optimizer import learning_rate, make_optimizer
from lowcurve.training.settings import TrainConfig

HEADINGS = (
    "last layer", "epoch", "held-out (%)", "norm of the last layer", "spread of logits",
    "β: least, median, largest", "γ: least, median", "σ: least, median, largest",
)  # fmt: skip


class Scale(nn.Module):
    """Multiplies logits by one learned number, which starts at 1."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(()))

    def forward(self, z: Tensor) -> Tensor:
        """Return the scaled logits."""
        return self.factor * z


def free(net: nn.Module, x: Tensor) -> nn.Module:
    """Return an LCNN as it is here by default."""
    return lc.convert(net, x)[0]


def unit(net: nn.Module, x: Tensor) -> nn.Module:
    """Return an LCNN as in the paper."""
    return lc.convert(net, x, last_layer="unit")[0]


def scaled(net: nn.Module, x: Tensor) -> nn.Module:
    """Return the paper's with one more parameter."""
    return nn.Sequential(unit(net, x), Scale())


FORMS: dict[str, Callable[[nn.Module, Tensor], nn.Module]] = {"free": free, "unit": unit, "scaled": scaled}


def train(model: nn.Module, data: Dataset, settings: TrainConfig, after_epoch: Callable[[int], None]) -> None:
    """Train with the paper's penalty and nothing else."""
    optimizer, done = make_optimizer(model, settings), 0
    for epoch in range(settings.epochs):
        loader = batches(data.train, settings.batch_size, seed=0, epoch=epoch, augmentation=data.augmentation)
        for x, y in loader:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(settings, done / (settings.epochs * len(loader)))
            optimizer.zero_grad()
            z = model(x.contiguous(memory_format=torch.channels_last))
            (F.cross_entropy(z, y) + lc.curvature_penalty(model)).backward()
            optimizer.step()
            done += 1
        after_epoch(epoch + 1)


def standing(model: nn.Module, data: Dataset, x: Tensor) -> list[str]:
    """Return how a network stands: a column for each heading after the first two."""
    with torch.no_grad():
        spread = model.eval()(x).std(dim=1).mean()
    layers, known = list(model.modules()), constants(model)
    norm = torch.linalg.matrix_norm([layer.weight for layer in layers if isinstance(layer, nn.Linear)][-1].detach(), 2)
    for layer in layers:
        norm = norm * layer.factor.detach().abs() if isinstance(layer, Scale) else norm
    beta, gamma, sigma = (torch.tensor(list(known[name].values())) for name in ("beta", "gamma", "sigma"))
    columns = [100 * accuracy_and_loss(model, data.test)[0], norm, spread]
    ranges = [(beta.min(), beta.median(), beta.max()), (gamma.min(), gamma.median())]
    ranges += [(sigma.min(), sigma.median(), sigma.max())]
    model.train()
    return [f"{float(value):.2f}" for value in columns] + [", ".join(f"{v:.3g}" for v in part) for part in ranges]


def main(data_name: str, epochs: int, width: int, samples: int, forms: list[str]) -> None:
    """Train each of the forms and print a table."""
    data = load_dataset(data_name).held_out(0.1)
    settings = TrainConfig(epochs=epochs, batch_size=PRESETS["long"].training["train.batch_size"])
    x, y = data.test.subset(samples, seed=0).batch(slice(None))
    print(f"| {' | '.join(HEADINGS)} |\n{'|---' * len(HEADINGS)}|", flush=True)
    for form in forms:
        torch.manual_seed(0)
        channels, *image = data.input_size
        net = lc.MODELS["resnet18"](
            num_classes=data.num_classes, in_channels=channels, width=width, image_size=tuple(image)
        )
        model = FORMS[form](net, x[:2]).train().to(memory_format=torch.channels_last)

        def show(epoch: int, form: str = form, model: nn.Module = model) -> None:
            print(f"| {' | '.join([form, str(epoch), *standing(model, data, x)])} |", flush=True)

        with flushed_denormals(), kept_memory():
            train(model, data, settings, show)
        loss, margin = (lc.curvature(model.eval(), x, y, of=of).curvature for of in ("loss", "margin"))
        print(f"| {form} | curvature: loss {loss.mean():.2f}, margin {margin.mean():.2f} |||||||", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="cifar100")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--samples", type=int, default=500)
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS))
    options = parser.parse_args()
    main(options.data, options.epochs, options.width, options.samples, options.forms)

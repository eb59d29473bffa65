"""Which last layer should an LCNN have? Free, of unit norm as in the paper, or of unit norm with a learned scale.

    python scripts/last_layer.py [--data cifar100] [--epochs 12] [--samples 500] [--output runs/last-layer]

Trains each form as the preset `long` does, for fewer epochs, and judges it on a tenth of the training images, held out.
The scale is one parameter behind the layer; normalized curvature does not see it.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import lowcurve as lc
from lowcurve.experiments.presets import PRESETS
from lowcurve.training.config import Config, parse_config

FORMS = {"free": ("resnet18", "free"), "unit": ("resnet18", "unit"), "unit, scaled": ("scaled-resnet18", "unit")}


class Scale(nn.Module):
    """Multiplies logits by one learned number, which starts at 1."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(()))

    def forward(self, z: Tensor) -> Tensor:
        """Return the scaled logits."""
        return self.factor * z


def scaled_resnet18(**options: Any) -> nn.Module:
    """A ResNet-18 whose logits have a scale of their own."""
    return nn.Sequential(lc.MODELS["resnet18"](**options), Scale())


def recipe(data: str, form: str, epochs: int, output: Path) -> Config:
    """The run of one form."""
    model, last_layer = FORMS[form]
    tree: dict[str, Any] = {"data": {"name": data, "validation": 0.1}, "method": {"name": "lcnn"}}
    tree |= {"model": {"name": model, "last_layer": last_layer}, "train": {}}
    for key, value in PRESETS["long"].training.items():
        section, name = key.split(".")
        tree[section][name] = value
    tree["train"] |= {"epochs": epochs, "evaluate_every": epochs}
    return parse_config({**tree, "name": f"{data}-{model}-{last_layer}", "output": str(output)})


def main(data: str, epochs: int, samples: int, output: Path) -> None:
    lc.MODELS["scaled-resnet18"] = scaled_resnet18
    print("| last layer | accuracy (%) | E C_f | median C_margin | norm with its scale |", flush=True)
    print("|---|--:|--:|--:|--:|", flush=True)
    for form in FORMS:
        config = recipe(data, form, epochs, output)
        run = lc.train(config, resume="auto")
        model = lc.load(run)
        x, y = config.data.load().test.subset(samples, seed=0).batch(slice(None))
        loss = lc.curvature(model, x, y).curvature
        margin = lc.curvature(model, x, y, of="margin").curvature
        layers = list(model.modules())
        norm = torch.linalg.matrix_norm([m.weight for m in layers if isinstance(m, nn.Linear)][-1].detach(), 2)
        for module in layers:
            norm = norm * module.factor.detach().abs() if isinstance(module, Scale) else norm
        print(
            f"| {form} | {100 * run.summary['accuracy']:.2f} | {float(loss.mean()):.2f} "
            f"| {float(margin.median()):.2f} | {float(norm):.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="cifar100")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--samples", type=int, default=500)
    parser.add_argument("--output", type=Path, default=Path("runs/last-layer"))
    arguments = parser.parse_args()
    main(arguments.data, arguments.epochs, arguments.samples, arguments.output)

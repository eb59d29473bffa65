"""Search CURE's step h and weight λ, which the paper does not give: the largest effect that keeps the accuracy.

    python scripts/search_cure.py --data cifar10 --output runs/search-cure

Trains one network per pair and a standard one, all alike otherwise, and prints accuracy and median curvature.
"""

import argparse
import sys
from pathlib import Path

import torch

import lowcurve as lc
from lowcurve.data import load_dataset
from lowcurve.errors import UserError
from lowcurve.training.config import Config, parse_config

PAIRS = ((0.5, 4e-3), (0.5, 4e-2), (1.5, 4e-3), (0.5, 4e-4), (1.5, 4e-2), (0.1, 4e-2))  # h, λ
SETTINGS = {
    "digits": {"model": {"width": 8}, "train": {"epochs": 20, "batch_size": 64, "lr": 0.05}},
    "cifar10": {
        "data": {"name": "cifar10", "limit_train": 2000, "limit_test": 1000},
        "model": {"width": 8},
        "train": {"epochs": 5, "batch_size": 64, "lr": 0.05, "evaluate_every": 5},
    },
}


def recipe(data: str, output: Path, step: float | None, weight: float | None) -> Config:
    """The run of one pair, or the standard one."""
    method = {"name": "standard"} if step is None else {"name": "cure", "cure_step": step, "lambda_cure": weight}
    name = "standard" if step is None else f"cure-h{step:g}-l{weight:g}"
    tree = {"data": {"name": data}, **SETTINGS[data], "method": method, "name": name, "output": str(output / data)}
    return parse_config(tree)


def describe(config: Config) -> str:
    """Train and measure one run."""
    run = lc.train(config, resume="auto")
    test = load_dataset(config.data.name).subset(test=config.data.limit_test).test
    x, y = test.batch(torch.arange(min(200, len(test))))
    found = lc.curvature(lc.load(run), x, y)
    margin = lc.curvature(lc.load(run), x, y, of="margin")
    return (
        f"{config.name:20s} accuracy {100 * run.summary['accuracy']:6.2f} %   gradient "
        f"{found.gradient_norm.median():8.3f}   loss curvature {found.curvature.median():8.2f}   "
        f"margin curvature {margin.curvature.median():8.2f}\n"
    )


def main() -> None:
    """Search."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=SETTINGS, default="digits")
    parser.add_argument("--output", type=Path, default=Path("runs/search-cure"))
    options = parser.parse_args()
    for step, weight in ((None, None), *PAIRS):
        try:
            line = describe(recipe(options.data, options.output, step, weight))
        except UserError as error:
            line = f"h {step}, λ {weight}: {error}\n"
        sys.stdout.write(line)
        sys.stdout.flush()


if __name__ == "__main__":
    main()

"""Are a trained network's logits too small? The norm of its last layer, the spread of its logits, their best scale.

    python scripts/logit_scale.py RUN... [--samples 1000]

A last layer of norm 1 bounds how far logits can move apart. Whether that binds shows in the factor t that makes the
cross-entropy of t·z least: above 1 the network would like larger logits than it has. Data come from each run's own
test split.
"""

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lowcurve as lc
from lowcurve.data import load_dataset
from lowcurve.training.runs import load_config

FACTORS = torch.logspace(-1, 1, 81)  # of the logits


def last_linear(model: nn.Module) -> Tensor:
    """Return the weight of the last linear layer, as it is used."""
    return [layer.weight for layer in model.modules() if isinstance(layer, nn.Linear)][-1].detach()


def main(runs: list[str], samples: int) -> None:
    print("| run | accuracy (%) | norm of the last layer | spread of logits | cross-entropy | least, at the factor |")
    print("|---|--:|--:|--:|--:|---|")
    for run in runs:
        model, data = lc.load(run).eval(), load_config(run).data
        x, y = load_dataset(data.name, data.dir).test.subset(samples, seed=0).batch(slice(None))
        with torch.no_grad():
            z = torch.cat([model(part) for part in x.split(250)])
        losses = torch.stack([F.cross_entropy(factor * z, y) for factor in FACTORS])
        least = int(losses.argmin())
        print(
            f"| {load_config(run).run_name} | {100 * float((z.argmax(1) == y).double().mean()):.1f} "
            f"| {float(torch.linalg.matrix_norm(last_linear(model), 2)):.2f} | {float(z.std(dim=1).mean()):.2f} "
            f"| {float(F.cross_entropy(z, y)):.2f} | {float(losses[least]):.2f} at {float(FACTORS[least]):.2f} |"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--samples", type=int, default=1000)
    arguments = parser.parse_args()
    main(arguments.runs, arguments.samples)

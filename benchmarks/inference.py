"""What does a folded LCNN cost at inference? Beside the plain net with ReLU, and with a softplus of PyTorch's.

Batches take turns; the figure is the median of each network's time over that of the ReLU network beside it.

    python -m benchmarks.inference
"""

import statistics
from functools import partial

import torch
from torch import nn

from benchmarks.clock import seconds
from benchmarks.steps import CPU, circumstances
from lowcurve.methods import build
from lowcurve.surgery.fold import fold


def networks(width: int) -> dict[str, nn.Module]:
    """Return ResNet-18s in eval mode that differ in their activation alone."""
    torch.manual_seed(0)
    made = {
        name: build(name, "resnet18", (3, 32, 32), 10, width=width).eval() for name in ("relu", "softplus-wd", "lcnn")
    }
    return {
        "plain net, ReLU": fold(made["relu"]),  # without this package's compiled batch norm
        "plain net, softplus": fold(made["softplus-wd"]),
        "plain net, ReLU, merged": fold(made["relu"], torch.zeros(1, 3, 32, 32)),
        "LCNN, folded": fold(made["lcnn"]),
        "LCNN, folded and merged": fold(made["lcnn"], torch.zeros(1, 3, 32, 32)),
        "LCNN": made["lcnn"],
    }


@torch.no_grad()
def inference_ratios(
    width: int = 16, batch: int = 128, rounds: int = 20, device: torch.device = CPU
) -> dict[str, float]:
    """Return each network's time relative to the ReLU network's."""
    x = torch.rand(batch, 3, 32, 32).to(device)
    nets = {name: net.to(device) for name, net in networks(width).items()}
    taken: dict[str, list[float]] = {name: [] for name in nets}
    for lap in range(rounds + 2):
        for name, net in nets.items():
            one = seconds(device, partial(net, x))
            if lap > 1:
                taken[name].append(one)
    relu = taken["plain net, ReLU"]
    return {
        name: statistics.median(own / base for own, base in zip(times, relu, strict=True))
        for name, times in taken.items()
    }


def print_inference(table: dict[str, float]) -> None:
    print("inference, ResNet-18 width 16, batch 128, 32×32, the plain net with ReLU = 1")
    for name, ratio in table.items():
        print(f"  {name:34s} {ratio:.2f}")
    print(flush=True)


if __name__ == "__main__":
    print(circumstances())
    print_inference(inference_ratios())

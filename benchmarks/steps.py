"""What does a training step of each method cost, in units of the same network with ReLU in plain PyTorch?

Every step stands between two plain steps and is divided by their mean, so that whatever else the machine does hits
both; the figure is the median of these ratios over rounds, with the quartiles as its spread.

    python -m benchmarks.steps --width 16 --batch 128 --rounds 15
"""

import argparse
import json
import platform
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lowcurve as lc
from benchmarks.clock import seconds
from lowcurve.environment import processor
from lowcurve.methods import build
from lowcurve.training.machine import flushed_denormals, kept_memory
from lowcurve.training.step import TrainingStep

CPU = torch.device("cpu")


class Row(NamedTuple):
    """What is timed: a method by lowcurve's step or in a loop of one's own, with its floor and the paper's ratio."""

    method: str
    coefficients: dict[str, object]
    floor: float  # by counting convolutions
    paper: float | None  # epoch-time ratio
    own_loop: bool = False


ROWS: dict[str, Row] = {
    "relu": Row("relu", {}, 1.0, None),
    "standard": Row("standard", {}, 1.0, 1.0),
    "lcnn": Row("lcnn", {}, 1.0, 1.6),
    "lcnn, own loop": Row("lcnn", {}, 1.0, None, own_loop=True),
    "gradreg": Row("gradreg", {}, 2.0, 2.7),
    "lcnn+gradreg": Row("lcnn+gradreg", {}, 2.0, 3.5),
    "lcnn+gradreg, own loop": Row("lcnn+gradreg", {}, 2.0, None, own_loop=True),
    "lcnn+gradreg, finite differences": Row("lcnn+gradreg", {"gradient": "finite"}, 2.0, None),
    "adv (3 steps)": Row("adv", {}, 3.0, 5.0),
    "cure": Row("cure", {}, 4.0, 5.0),
}


def circumstances(device: torch.device = CPU) -> dict[str, object]:
    """What a figure depends on."""
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": processor(),
        "load": Path("/proc/loadavg").read_text().split()[0] if Path("/proc/loadavg").exists() else None,
    }


def step_times(
    rows: list[str],
    width: int,
    batch: int,
    size: int,
    rounds: int,
    channels_last: bool = False,
    device: torch.device = CPU,
) -> dict[str, list[tuple[float, float]]]:
    """Return per row the seconds of its steps and those of the plain steps around each."""
    network, x, y = setting(width, batch, size, channels_last, device)
    steps = {row: _step(ROWS[row], network, x, y) for row in rows}
    return alternating(steps, network("relu"), x, y, rounds)


def setting(
    width: int, batch: int, size: int, channels_last: bool = False, device: torch.device = CPU
) -> tuple[Callable[[str], nn.Module], Tensor, Tensor]:
    """Return a function from a method to its network, and a batch."""
    torch.manual_seed(0)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    x = torch.rand(batch, 3, size, size).to(device).contiguous(memory_format=layout)
    y = torch.randint(0, 10, (batch,)).to(device)

    def network(method: str) -> nn.Module:
        net = build(method, "resnet18", (3, size, size), 10, width=width)
        return net.train().to(device, memory_format=layout)  # type: ignore[call-overload,no-any-return]

    return network, x, y


def alternating(
    steps: dict[str, Callable[[], object]], plain: nn.Module, x: Tensor, y: Tensor, rounds: int
) -> dict[str, list[tuple[float, float]]]:
    """Return per row, for `rounds` steps after two to warm up, its seconds and those of the plain steps around it."""
    pairs: dict[str, list[tuple[float, float]]] = {row: [] for row in steps}
    with flushed_denormals(), kept_memory():  # as in `lowcurve train`
        for lap in range(rounds + 2):
            before = seconds(x.device, lambda: _plain(plain, x, y))
            for row, step in steps.items():
                own, after = seconds(x.device, step), seconds(x.device, lambda: _plain(plain, x, y))
                if lap > 1:
                    pairs[row].append((own, (before + after) / 2))
                before = after
    return pairs


def _plain(net: nn.Module, x: Tensor, y: Tensor) -> None:
    net.zero_grad(set_to_none=True)
    F.cross_entropy(net(x), y).backward()


def _step(row: Row, network: Callable[[str], nn.Module], x: Tensor, y: Tensor) -> Callable[[], object]:
    """Return a step of lowcurve's own, or of a loop that knows `convert` and the penalties alone."""
    if not row.own_loop:
        step = TrainingStep(network(row.method), row.method, row.coefficients)
        return lambda: step(x, y)
    net = lc.convert(network("relu"), x[:2])[0].train()
    penalized = "gradreg" in row.method

    def own() -> None:
        net.zero_grad(set_to_none=True)
        inputs = x.detach().clone(memory_format=torch.preserve_format).requires_grad_(penalized)
        losses = F.cross_entropy(net(inputs), y, reduction="none")
        total = losses.mean() + lc.curvature_penalty(net)
        if penalized:
            total = total + 6.1e-3 * lc.gradient_penalty(losses, inputs)
        total.backward()

    return own


def ratios(pairs: dict[str, list[tuple[float, float]]]) -> dict[str, dict[str, float | None]]:
    """Return median and quartiles of each row's ratio to the plain steps around it."""
    table: dict[str, dict[str, float | None]] = {}
    for row, times in pairs.items():
        quotient = [own / plain for own, plain in times]
        low, median, high = statistics.quantiles(quotient, n=4) if len(quotient) > 1 else quotient * 3
        table[row] = {
            "ratio": median,
            "low": low,
            "high": high,
            "milliseconds": 1e3 * statistics.median(own for own, _ in times),
            "floor": ROWS[row].floor,
            "paper": ROWS[row].paper,
        }
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--device", type=torch.device, default=CPU, help="cpu, or cuda (CUDA and ROCm)")
    parser.add_argument("--rows", nargs="*", default=list(ROWS), choices=list(ROWS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    size = (options.width, options.batch, options.size, options.rounds)
    table = ratios(step_times(options.rows, *size, options.channels_last, options.device))
    print(f"width {options.width}, batch {options.batch}, {options.rounds} rounds, {circumstances(options.device)}")
    for row, figures in table.items():
        print(
            f"{row:34s} {figures['ratio']:.3f}  [{figures['low']:.3f}, {figures['high']:.3f}]  floor {figures['floor']}"
        )
    if options.json:
        options.json.write_text(json.dumps({"environment": circumstances(options.device), "table": table}, indent=1))


if __name__ == "__main__":
    main()

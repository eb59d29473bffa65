"""What does a training step of each method cost, in units of the same network with ReLU in plain PyTorch?

Every step stands between two plain steps and is divided by their mean, so that whatever else the machine does hits
both; the figure is the median of these ratios over rounds, with the quartiles as its spread.

    python -m benchmarks.steps --width 16 --batch 128 --rounds 15
"""

import argparse
import json
import platform
import statistics
import time
from pathlib import Path

import torch
import torch.nn.functional as F

from lowcurve.environment import processor
from lowcurve.methods import build
from lowcurve.training.machine import flushed_denormals, kept_memory
from lowcurve.training.step import TrainingStep

# name -> (method, coefficients, floor by counting convolutions, the paper's epoch-time ratio)
ROWS: dict[str, tuple[str, dict[str, object], float, float | None]] = {
    "relu": ("relu", {}, 1.0, None),
    "standard": ("standard", {}, 1.0, 1.0),
    "lcnn": ("lcnn", {}, 1.0, 1.6),
    "gradreg": ("gradreg", {}, 2.0, 2.7),
    "lcnn+gradreg": ("lcnn+gradreg", {}, 2.0, 3.5),
    "lcnn+gradreg, finite differences": ("lcnn+gradreg", {"gradient": "finite"}, 2.0, None),
    "adv (3 steps)": ("adv", {}, 3.0, 5.0),
    "cure": ("cure", {}, 4.0, 5.0),
}


def circumstances() -> dict[str, object]:
    """What a figure depends on."""
    return {
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": processor(),
        "load": Path("/proc/loadavg").read_text().split()[0] if Path("/proc/loadavg").exists() else None,
    }


def step_times(
    rows: list[str], width: int, batch: int, size: int, rounds: int, channels_last: bool = False
) -> dict[str, list[tuple[float, float]]]:
    """Return per row, for `rounds` steps after one to warm up, its seconds and those of the plain steps around it."""
    torch.manual_seed(0)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    x = torch.rand(batch, 3, size, size).contiguous(memory_format=layout)
    y = torch.randint(0, 10, (batch,))
    steps: dict[str, TrainingStep] = {}
    plain = build("relu", "resnet18", (3, size, size), 10, width=width).train().to(memory_format=layout)
    for row in rows:
        name, changes, *_ = ROWS[row]
        net = build(name, "resnet18", (3, size, size), 10, width=width).train().to(memory_format=layout)
        steps[row] = TrainingStep(net, name, changes)

    def seconds(row: str) -> float:
        start = time.perf_counter()
        steps[row](x, y)
        return time.perf_counter() - start

    def plain_seconds() -> float:
        start = time.perf_counter()
        plain.zero_grad(set_to_none=True)
        F.cross_entropy(plain(x), y).backward()
        return time.perf_counter() - start

    pairs: dict[str, list[tuple[float, float]]] = {row: [] for row in rows}
    with flushed_denormals(), kept_memory():  # as in `lowcurve train`
        for lap in range(rounds + 1):
            before = plain_seconds()
            for row in rows:
                own, after = seconds(row), plain_seconds()
                if lap:
                    pairs[row].append((own, (before + after) / 2))
                before = after
    return pairs


def ratios(pairs: dict[str, list[tuple[float, float]]]) -> dict[str, dict[str, float | None]]:
    """Return median and quartiles of each row's ratio to the plain steps around it."""
    table: dict[str, dict[str, float | None]] = {}
    for row, times in pairs.items():
        quotient = [own / plain for own, plain in times]
        low, median, high = statistics.quantiles(quotient, n=4) if len(quotient) > 1 else quotient * 3
        _, _, floor, paper = ROWS[row]
        table[row] = {
            "ratio": median,
            "low": low,
            "high": high,
            "milliseconds": 1e3 * statistics.median(own for own, _ in times),
            "floor": floor,
            "paper": paper,
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
    parser.add_argument("--rows", nargs="*", default=list(ROWS), choices=list(ROWS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    size = (options.width, options.batch, options.size, options.rounds)
    table = ratios(step_times(options.rows, *size, options.channels_last))
    print(f"width {options.width}, batch {options.batch}, {options.rounds} rounds, {circumstances()}")
    for row, figures in table.items():
        print(
            f"{row:34s} {figures['ratio']:.3f}  [{figures['low']:.3f}, {figures['high']:.3f}]  floor {figures['floor']}"
        )
    if options.json:
        options.json.write_text(json.dumps({"environment": circumstances(), "table": table}, indent=1))


if __name__ == "__main__":
    main()

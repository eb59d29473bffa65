"""`make bench`: the cost of low curvature on this machine, in a few minutes, as tables, JSON and charts.

python -m benchmarks [--quick] [--device cuda] [--output benchmarks/results]

Figures of another device than the CPU are written beside those of the CPU, under its name (`bench-cuda.json`).
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch

from benchmarks.inference import inference_ratios, print_inference
from benchmarks.memory import peak_megabytes, peak_on
from benchmarks.steps import CPU, ROWS, circumstances, ratios, step_times

GROWTH = {"width": [8, 16, 32], "batch": [32, 64, 128], "size": [16, 32, 64]}
GROWTH_ROWS = ["relu", "lcnn", "lcnn+gradreg"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="width 16 only, few rounds: a look, not a figure")
    parser.add_argument("--device", type=torch.device, default=CPU, help="cpu, or cuda (CUDA and ROCm)")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    device: torch.device = options.device
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SystemExit("expected a GPU that this build of PyTorch can use, got none; leave --device out")
    options.output.mkdir(parents=True, exist_ok=True)
    mark = "" if device.type == "cpu" else f"-{device.type}"
    print(f"{circumstances(device)}\n")
    rounds = {16: 3} if options.quick else {16: 31, 64: 3 if device.type == "cpu" else 31}
    tables = {f"width {width}": _steps(width, laps, device) for width, laps in rounds.items()}
    measure = peak_megabytes if device.type == "cpu" else partial(peak_on, device)
    memory = {row: measure(row) for row in ("relu", "lcnn", "gradreg", "lcnn+gradreg", FINITE)}
    _print_memory(memory)
    inference = inference_ratios(device=device)
    print_inference(inference)
    imports = import_ratio()
    print(f"import lowcurve (all public names) / import torch: {imports:.2f}\n")
    growth = {} if options.quick else {axis: _growth(axis, device) for axis in GROWTH}
    report = {
        "command": "make bench" if device.type == "cpu" else f"python -m benchmarks --device {device}",
        "environment": circumstances(device),
        "steps": tables,
        "memory_megabytes": memory,
        "inference": inference,
        "import_ratio": imports,
        "growth": growth,
    }
    (options.output / f"bench{mark}.json").write_text(json.dumps(report, indent=1) + "\n")
    _bar_chart(tables, options.output / f"steps{mark}.png")
    if growth:
        _growth_chart(growth, options.output / f"growth{mark}.png")
    print(f"written to {options.output}")


FINITE = "lcnn+gradreg, finite differences"


def _steps(width: int, rounds: int, device: torch.device) -> dict[str, dict[str, float | None]]:
    table = ratios(step_times(list(ROWS), width, batch=128, size=32, rounds=rounds, device=device))
    print(f"training step, ResNet-18 width {width}, batch 128, 32×32, median of {rounds} rounds, plain ReLU step = 1")
    for row, figures in table.items():
        spread = f"[{figures['low']:.2f}, {figures['high']:.2f}]"
        print(
            f"  {row:34s} {figures['ratio']:.3f}  {spread}  floor {figures['floor']}  paper {figures['paper'] or '-'}"
        )
    print(flush=True)
    return table


def _print_memory(memory: dict[str, float]) -> None:
    print("peak memory of a step above an idle process, width 16, batch 128")
    for row, megabytes in memory.items():
        print(f"  {row:34s} {megabytes:7.0f} MB  {megabytes / memory['relu']:.2f}")
    print(flush=True)


def import_ratio(rounds: int = 7) -> float:
    """Return the median time of importing every public name of lowcurve's core over that of importing torch."""
    statements = {
        "torch": "import torch",
        "ours": "import lowcurve as lc; lc.convert; lc.curvature; lc.attack; lc.bounds",
    }
    seconds: dict[str, list[float]] = {name: [] for name in statements}
    for _ in range(rounds):
        for name, statement in statements.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", statement], check=True)
            seconds[name].append(time.perf_counter() - start)
    return statistics.median(seconds["ours"]) / statistics.median(seconds["torch"])


def _growth(axis: str, device: torch.device) -> dict[str, object]:
    """Time steps along one axis and fit seconds = c · valueᵃ."""
    milliseconds: dict[str, list[float]] = {row: [] for row in GROWTH_ROWS}
    for value in GROWTH[axis]:
        settings = {"width": 16, "batch": 64, "size": 32} | {axis: value}
        for row, times in step_times(GROWTH_ROWS, rounds=3, device=device, **settings).items():
            milliseconds[row].append(1e3 * statistics.median(own for own, _ in times))
    exponents = {
        row: float(np.polyfit(np.log(GROWTH[axis]), np.log(times), 1)[0]) for row, times in milliseconds.items()
    }
    print(
        f"growth with {axis}: " + ", ".join(f"{row} ^{exponent:.2f}" for row, exponent in exponents.items()), flush=True
    )
    return {"values": GROWTH[axis], "milliseconds": milliseconds, "exponents": exponents}


def _bar_chart(tables: dict[str, dict[str, dict[str, float | None]]], path: Path) -> None:
    rows = list(ROWS)
    series = {name: [table[row]["ratio"] for row in rows] for name, table in tables.items()}
    series["paper"] = [ROWS[row].paper for row in rows]
    figure, axes = plt.subplots(figsize=(9, 4.2), layout="constrained")
    height = 0.8 / len(series)
    for i, (name, values) in enumerate(series.items()):
        at = np.arange(len(rows)) + (i - (len(series) - 1) / 2) * height
        axes.barh(at, [v or 0 for v in values], height, label=name, color=["#3b6fb6", "#7fb0e0", "#c9c9c9"][i % 3])
    for i, row in enumerate(rows):
        axes.plot([ROWS[row].floor] * 2, [i - 0.42, i + 0.42], color="black", lw=1.5, label="floor" if i == 0 else None)
    axes.set_yticks(range(len(rows)), rows)
    axes.invert_yaxis()
    axes.set_xlabel("time of a training step, the same network with ReLU in plain PyTorch = 1")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=140)


def _growth_chart(growth: dict[str, dict[str, object]], path: Path) -> None:
    figure, panels = plt.subplots(1, len(growth), figsize=(11, 3.6), layout="constrained")
    for axes, (axis, data) in zip(panels, growth.items(), strict=True):
        for row, times in data["milliseconds"].items():  # type: ignore[attr-defined]
            label = f"{row}, exponent {data['exponents'][row]:.2f}"  # type: ignore[index]
            axes.loglog(data["values"], times, marker="o", label=label)
        axes.set_xlabel({"width": "width", "batch": "batch size", "size": "image side in pixels"}[axis])
        axes.legend(frameon=False, fontsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("milliseconds per step")
    figure.savefig(path, dpi=140)


if __name__ == "__main__":
    torch.manual_seed(0)
    main()

"""How many kernels does the compiler make of a whole step, how long does it take, and what does the step cost?

Steps alternate with steps of the same network with ReLU in plain, eager PyTorch, as in `benchmarks.steps`.

    python -m benchmarks.compiled --width 16 --batch 128 --rounds 9
"""

import argparse
import time
from collections.abc import Callable
from functools import partial

import torch
from torch._inductor import metrics

from benchmarks.steps import ROWS, alternating, circumstances, ratios, setting
from lowcurve.training.compiled import CompiledStep
from lowcurve.training.step import TrainingStep

COMPILED = [row for row, what in ROWS.items() if not what.own_loop]
METHODS = ["standard", "lcnn", "gradreg", "lcnn+gradreg", "adv (3 steps)", "cure"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--channels-last", action="store_true", help="of compiled networks; ReLU's stays row-major")
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"), help="cpu, or cuda")
    parser.add_argument("--rows", nargs="*", default=METHODS, choices=COMPILED)
    options = parser.parse_args()
    sizes = (options.width, options.batch, options.size)
    network, x, y = setting(*sizes, options.channels_last, options.device)
    steps: dict[str, Callable[[], object]] = {}
    for row in options.rows:
        net = network(ROWS[row].method)
        step = CompiledStep(TrainingStep(net, ROWS[row].method, ROWS[row].coefficients))
        metrics.reset()
        start = time.perf_counter()
        step(x, y)
        taken = time.perf_counter() - start
        print(f"{row:34s} {metrics.generated_kernel_count} kernels generated, first step {taken:.0f} s", flush=True)
        steps[row] = partial(step, x, y)
    plain, x, y = setting(*sizes, device=options.device)
    table = ratios(alternating(steps, plain("relu"), x, y, options.rounds))
    print(f"width {options.width}, batch {options.batch}, {options.rounds} rounds, {circumstances(options.device)}")
    for row, figures in table.items():
        print(f"{row:34s} {figures['ratio']:.3f}  [{figures['low']:.3f}, {figures['high']:.3f}]")


if __name__ == "__main__":
    main()

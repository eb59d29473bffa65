"""How much faster do two processes train than one? Images per second of `lowcurve train`, one thread per process.

Run `python -m benchmarks.scaling [--rounds 5]`. Digits enlarged to 3×32×32 pixels need no download; a batch of 128 is
shared by the processes (gloo). One process and two take turns; figures are medians over rounds, after one epoch of
warming up, and the ideal is 2 on a machine with two free cores.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image

from lowcurve.data import load_dataset

METHODS = ("relu", "lcnn", "lcnn+gradreg")


def enlarge(folder: Path, count: int) -> None:
    """Write digits as colour images in the layout of the named image sets."""
    digits = load_dataset("digits").train
    for split, size in (("train", count), ("test", 100)):
        rows = []
        for i in range(size):
            pixels = torch.nn.functional.interpolate(digits.batch(slice(i, i + 1))[0], size=32)
            buffer = pa.BufferOutputStream()
            Image.fromarray((pixels[0, 0] * 255).byte().numpy()).convert("RGB").save(buffer, "PNG")
            rows.append({"img": {"bytes": buffer.getvalue().to_pybytes(), "path": ""}, "label": int(digits.labels[i])})
        (folder / "cifar10").mkdir(exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows), folder / "cifar10" / f"{split}.parquet")


def images_per_second(folder: Path, method: str, processes: int, number: int) -> float:
    """Train two epochs with the command line; return the second epoch's figure."""
    name = f"{method}-{processes}-{number}"
    settings = [f"name={name}", f"method.name={method}", "data.name=cifar10", "model.width=16", "train.epochs=2"]
    launch = [sys.executable, "-m", "lowcurve"]
    if processes > 1:
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"]
        launch += ["-m", "lowcurve"]
    (folder / "recipe.toml").touch()
    command = [*launch, "train", str(folder / "recipe.toml"), "--output", str(folder), "--data-dir", str(folder)]
    for setting in settings:
        command += ["--set", setting]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True)
    rows = (folder / name / "metrics.jsonl").read_text().splitlines()
    return float(json.loads(rows[-1])["images_per_second"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--images", type=int, default=1280)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    table = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        enlarge(folder, options.images)
        for method in METHODS:
            speeds: dict[int, list[float]] = {1: [], 2: []}
            for number in range(options.rounds):
                for processes, found in speeds.items():
                    found.append(images_per_second(folder, method, processes, number))
            one, two = (statistics.median(speeds[processes]) for processes in (1, 2))
            table[method] = {"one": one, "two": two, "speedup": two / one, "all": speeds}
            print(
                f"{method:14s} 1 × 1 thread {one:7.1f} images/s   2 × 1 thread {two:7.1f}   {two / one:.2f}×",
                flush=True,
            )
    facts = {"torch": torch.__version__, "cores": os.cpu_count(), "machine": platform.machine()}
    report = {
        "command": "python -m benchmarks.scaling",
        "environment": facts,
        "rounds": options.rounds,
        "methods": table,
    }
    (options.output / "scaling.json").write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()

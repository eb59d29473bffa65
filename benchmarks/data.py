"""What does the data pipeline cost beside a training step? Both timed in turn, in one run, on one thread.

Run `python -m benchmarks.data`: random 32×32 images, batches of 128 with crop and flip, plain ResNet-18 at width 16.
"""

import statistics
import time

import torch
import torch.nn.functional as F

from lowcurve.data.dataset import Split
from lowcurve.data.loader import batches
from lowcurve.models import MODELS

STEPS = 20


def main() -> None:
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (20_000, 3, 32, 32), dtype=torch.uint8, generator=generator)
    split = Split(images, torch.randint(0, 10, (20_000,), generator=generator))
    model = MODELS["resnet18"](width=16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = iter(batches(split, 128, seed=0, epoch=0, augmentation=("crop", "flip")))
    pipeline, step = [], []
    for _ in range(STEPS):
        start = time.perf_counter()
        x, y = next(loader)
        loaded = time.perf_counter()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        pipeline.append(loaded - start)
        step.append(time.perf_counter() - loaded)
    milliseconds = [1000 * statistics.median(times) for times in (pipeline, step)]
    print("| batch of 128, crop and flip | training step | share |\n|---|---|---|")
    print(f"| {milliseconds[0]:.2f} ms | {milliseconds[1]:.0f} ms | {milliseconds[0] / milliseconds[1]:.2%} |")


if __name__ == "__main__":
    main()

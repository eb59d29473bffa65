"""What would a training step cost on a GPU? Kernels, bytes and waits, counted without one, and a prediction.

Every operator that reaches PyTorch's dispatcher and is not a mere view launches as many kernels as its GPU
implementation has (`KERNELS`; one where nothing is said), and touches each input and output once. The prediction is
a roofline: a kernel takes as long as its bytes need at the GPU's bandwidth or its products at its peak in float32, and
at least `LEAST`; a step takes as long as its kernels, or as the host needs to launch them. Nothing here is measured.

    python -m benchmarks.launches [--width 16] [--batch 64] [--rows lcnn lcnn+gradreg] [--top 10]
"""

import argparse
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

import lowcurve as lc
from lowcurve.linalg.bidiagonal import DIMENSIONS
from lowcurve.methods import Coefficients, build, find_method
from lowcurve.training.step import training_step

# Views, and memory that nobody fills.
FREE = {"view", "t", "transpose", "permute", "expand", "slice", "select", "unsqueeze", "squeeze", "detach", "alias"}
FREE |= {
    "as_strided",
    "reshape",
    "_unsafe_view",
    "unbind",
    "split",
    "split_with_sizes",
    "lift_fresh",
    "narrow",
    "unfold",
}
FREE |= {"empty", "empty_like", "new_empty", "empty_strided", "_reshape_alias", "resize_", "set_", "is_same_size"}
FREE |= {"chunk", "view_as", "expand_as", "unfold"}
# Kernels of one operator: batch norm sums over channels first, in PyTorch's own implementation too; gradients of
# convolutions in input and weight are two; a sum of parts follows the gradient of softplus; unit weights need their
# norms first; singular vectors are followed in so many steps.
KERNELS = {
    "native_batch_norm": 2,
    "native_batch_norm_backward": 2,
    "convolution_backward": 2,
    "norm": 2,
    "norm_gradient": 2,
    "norm_second": 2,
    "softplus_gradient": 2,
    "softplus_second": 2,
    "unit_weights": 2,
    "unit_weights_gradient": 2,
    "follow": 2 * DIMENSIONS + 6,
}
WAITS = {"_local_scalar_dense", "nonzero"}


@dataclass(frozen=True)
class GPU:
    """Bytes and float32 operations per second, as its maker states them."""

    bandwidth: float
    peak: float


GPUS = {"A100": GPU(1.555e12, 19.5e12), "H100": GPU(3.35e12, 67e12), "RTX 4090": GPU(1.008e12, 82.6e12)}
LAUNCH = 5e-6  # seconds of the host for each kernel
LEAST = 2e-6  # seconds of a kernel that does nothing


@dataclass
class Launches(TorchDispatchMode):
    """Count the operators of what runs inside."""

    kernels: Counter[str] = field(default_factory=Counter)
    work: list[tuple[int, float, float]] = field(default_factory=list)  # kernels, bytes, float operations
    waits: int = 0

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        self.waits += name in WAITS
        if name not in FREE:
            count = KERNELS.get(name, 1)
            self.kernels[name] += count
            tensors = [t for t in tree_leaves((args, kwargs, result)) if isinstance(t, torch.Tensor)]
            formula = flop_registry.get(func.overloadpacket)
            flops = formula(*args, **(kwargs or {}), out_val=result) if formula else 0
            self.work.append((count, sum(t.numel() * t.element_size() for t in tensors), flops))
        return result

    @property
    def total(self) -> int:
        """All kernels."""
        return sum(self.kernels.values())

    @property
    def touched(self) -> float:
        """All bytes."""
        return sum(touched for _, touched, _ in self.work)

    def seconds(self, gpu: GPU) -> float:
        """Predict a step's time."""
        busy = sum(max(n * LEAST, moved / gpu.bandwidth, flops / gpu.peak) for n, moved, flops in self.work)
        return max(busy, self.total * LAUNCH)


def count(step: Callable[[], object]) -> Launches:
    """Count the second of two steps: the first makes what is kept."""
    step()
    with Launches() as found:
        step()
    return found


def steps(rows: list[str], width: int, batch: int) -> dict[str, Callable[[], object]]:
    """Return a plain ReLU step, the methods' and those of a user's own loop, on a ResNet-18."""
    x, y = torch.rand(batch, 3, 32, 32), torch.randint(0, 10, (batch,))
    plain = build("relu", "resnet18", (3, 32, 32), 10, width=width).train()

    def relu() -> None:
        plain.zero_grad(set_to_none=True)
        F.cross_entropy(plain(x), y).backward()

    def ours(name: str) -> Callable[[], object]:
        method = find_method(name)
        numbers = Coefficients(method.coefficients)
        net = build(method, "resnet18", (3, 32, 32), 10, width=width).train()
        return lambda: training_step(net, x, y, method, numbers)

    def own_loop(penalized: bool) -> Callable[[], object]:
        net = lc.convert(build("relu", "resnet18", (3, 32, 32), 10, width=width), x[:2])[0].train()

        def step() -> None:
            net.zero_grad(set_to_none=True)
            inputs = x.clone().requires_grad_(penalized)
            losses = F.cross_entropy(net(inputs), y, reduction="none")
            total = losses.mean() + lc.curvature_penalty(net)
            if penalized:
                total = total + 6.1e-3 * lc.gradient_penalty(losses, inputs)
            total.backward()

        return step

    own = {"own loop: lcnn": own_loop(False), "own loop: lcnn+gradreg": own_loop(True)}
    return {"ReLU, plain PyTorch": relu, **{name: ours(name) for name in rows}, **own}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rows", nargs="*", default=["standard", "lcnn", "gradreg", "lcnn+gradreg", "adv", "cure"])
    parser.add_argument("--top", type=int, default=0, help="print this many of a row's most frequent operators")
    options = parser.parse_args()
    torch.manual_seed(0)
    base: Launches | None = None
    print(f"{'':24s}{'kernels':>8s}{'':>7s}{'MB':>9s}{'':>7s}{'waits':>7s}" + "".join(f"{name:>10s}" for name in GPUS))
    for name, step in steps(options.rows, options.width, options.batch).items():
        found = count(step)
        base = base or found
        predicted = "".join(f"{found.seconds(gpu) / base.seconds(gpu):10.2f}" for gpu in GPUS.values())
        print(
            f"{name:24s}{found.total:8d}{found.total / base.total:7.2f}{found.touched / 1e6:9.1f}"
            f"{found.touched / base.touched:7.2f}{found.waits:7d}{predicted}"
        )
        if options.top:
            print("   ", ", ".join(f"{n} {c}" for n, c in found.kernels.most_common(options.top)))


if __name__ == "__main__":
    main()

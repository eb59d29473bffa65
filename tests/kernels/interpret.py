"""Run the GPU kernels in Triton's interpreter and print each case's largest error.

TRITON_INTERPRET=1 python -m tests.kernels.interpret
"""

import math
import sys
from unittest import mock

import torch
from torch import nn

from lowcurve.kernels import gpu, reference
from lowcurve.linalg import bidiagonal, following
from lowcurve.linalg.linear_map import LinearMap
from tests.kernels.truth import CASES, softplus_errors

# The interpreter is slow: of all cases some, of eval mode fewer, as it shares tiles with training.
SMALL = ("norm of (4, 5, 6, 7)", "norm of (6, 4)", "norm of (5, 3, 11), affine")
SMALLER = ("norm of (4, 5, 6, 7), affine, with_other", "norm of (6, 4), affine")


def is_small(name: str) -> bool:
    return "norm" not in name or any(size in name for size in (SMALLER if name.startswith("affine") else SMALL))


def follow_error() -> float:
    """The largest difference between the kernels' vectors and those that plain PyTorch finds by the same steps."""
    torch.manual_seed(0)
    modules = [nn.Conv2d(3, 5, 3, padding=1, stride=2), nn.Linear(40, 3), nn.Conv1d(3, 4, 3, dilation=2, padding=1)]
    maps = [LinearMap.of(m, size) for m, size in zip(modules, [(7, 6), None, (9,)], strict=True)]
    weights = [modules[0].weight.detach() * 1e20, modules[1].weight.detach(), torch.zeros(4, 3, 3)]
    results = []
    for method in (following._on_gpu, following._elsewhere):
        generator = torch.Generator().manual_seed(1)
        u = [torch.randn(1, *m.output_shape, generator=generator) for m in maps]
        v, s = [torch.zeros(1, *m.input_shape) for m in maps], [torch.zeros_like(weight) for weight in weights]
        with mock.patch.object(following, "DIMENSIONS", 3), mock.patch.object(bidiagonal, "DIMENSIONS", 3):
            method(list(zip(maps, weights, u, v, s, strict=True)), 1)
        results.append([*u, *v, *s])
    assert all(bool(t.any()) for t in results[0][:2]) and not bool(results[0][2].any())
    return max(float((a - b).abs().max()) for a, b in zip(*results, strict=True))


def main() -> None:
    cases = {name: case for name, case in CASES.items() if is_small(name)}
    worst = 0.0
    for name, case in cases.items():
        found = max(case(gpu))
        worst = max(worst, found)
        print(f"{found:.1e}  {name}")
    for dtype in (torch.bfloat16, torch.float16):  # gradients come from rounded outputs: about as good as PyTorch's own
        ours, plain = (max(softplus_errors(module, 1.0, dtype)) for module in (gpu, reference))
        print(f"{ours:.1e}  softplus in {dtype}, plain PyTorch {plain:.1e}")
        worst = max(worst, 2e-4 * ours / (1.5 * plain))
    found = follow_error()
    print(f"{found:.1e}  singular vectors")
    worst = max(worst, found)
    x = torch.tensor([math.nan, math.inf, -math.inf, 1.0])
    found, truth = (module.softplus(x, torch.tensor(0.0), 0.0) for module in (gpu, reference))
    if not torch.equal(torch.isnan(found), torch.isnan(truth)):
        sys.exit(f"softplus of {x.tolist()}: {found.tolist()} instead of {truth.tolist()}")
    if worst > 2e-4:
        sys.exit(f"the largest error is {worst:.1e}")


if __name__ == "__main__":
    main()

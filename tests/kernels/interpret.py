"""Run the GPU kernels in Triton's interpreter and print each case's largest error.

TRITON_INTERPRET=1 python -m tests.kernels.interpret
"""

import math
import sys

import torch

from lowcurve.kernels import gpu, reference
from tests.kernels.truth import CASES, softplus_errors

SMALL = ("(4, 5, 6, 7)", "(6, 4)", "(5, 3, 11), affine")  # the interpreter is slow


def main() -> None:
    cases = {name: case for name, case in CASES.items() if "norm" not in name or any(size in name for size in SMALL)}
    worst = 0.0
    for name, case in cases.items():
        found = max(case(gpu))
        worst = max(worst, found)
        print(f"{found:.1e}  {name}")
    for dtype in (torch.bfloat16, torch.float16):  # gradients come from rounded outputs: about as good as PyTorch's own
        ours, plain = (max(softplus_errors(module, 1.0, dtype)) for module in (gpu, reference))
        print(f"{ours:.1e}  softplus in {dtype}, plain PyTorch {plain:.1e}")
        worst = max(worst, 2e-4 * ours / (1.5 * plain))
    x = torch.tensor([math.nan, math.inf, -math.inf, 1.0])
    found, truth = (module.softplus(x, torch.tensor(0.0), 0.0) for module in (gpu, reference))
    if not torch.equal(torch.isnan(found), torch.isnan(truth)):
        sys.exit(f"softplus of {x.tolist()}: {found.tolist()} instead of {truth.tolist()}")
    if worst > 2e-4:
        sys.exit(f"the largest error is {worst:.1e}")


if __name__ == "__main__":
    main()

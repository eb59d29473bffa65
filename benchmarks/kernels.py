"""Do the Triton kernels compile for every GPU, and how many registers do they take? No GPU is needed.

python -m benchmarks.kernels [--dtype fp32 bf16 fp16] [--output benchmarks/results/kernels.md]
"""

import argparse
import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from lowcurve.kernels.triton import (
    affine,
    follow_kernels,
    norm_gradient,
    norm_second,
    norm_value,
    scales,
    softplus,
    unit,
)

TARGETS = {
    "sm_75 (Turing)": GPUTarget("cuda", 75, 32),
    "sm_80 (A100)": GPUTarget("cuda", 80, 32),
    "sm_90 (H100)": GPUTarget("cuda", 90, 32),
    "sm_100 (B200)": GPUTarget("cuda", 100, 32),
    "gfx942 (MI300)": GPUTarget("hip", "gfx942", 64),
}
# Tensors that are float32 whatever the others are.
_SINGLE = {"log_beta", "mean", "invstd", "sums", "partial", "running_mean", "running_var", "weight", "bias", "sigma"}
_SINGLE |= {"in_weight", "in_bias", "t_hat", "t_sum", "in_beta", "var"}
_MODULES = (softplus, norm_value, norm_gradient, norm_second, affine, scales, unit, follow_kernels)
# In modules whose other arguments are tables of numbers and addresses: what is float32, and numbers.
_SINGLE_BESIDE_TABLES = {
    "partial",
    "sigma",
    "eps",
    "gains",
    "factors",
    "in_gammas",
    "u",
    "v",
    "before",
    "grain",
    "basis",
}
_SINGLE_BESIDE_TABLES |= {"squares", "squares_u", "squares_v", "squares_before", "squares_first"}
_NUMBERS_BESIDE_TABLES = {"count_u", "count_v", "total"}
_NUMBERS = dict.fromkeys(("shift", "factor", "momentum", "eps"), "fp32")
_INTEGERS = {"size", "positions", "channels", "length", "stride_n", "stride_c", "stride_l", "per_part"}
_CONSTANTS = {"BLOCK": 1024, "PARTS": 16, "P": 32, "C": 32, "MOST": 1024}
_CONSTANTS |= {"T": 32, "BLOCKS": 1024, "STEPS": 16, "SIZE": 16, "SQUARINGS": 12}  # and every flag on


@dataclass(frozen=True)
class Compiled:
    """What came out for one kernel; None where a compiler does not say."""

    name: str
    binary_bytes: int
    registers: int | None
    spills: int


def compile_all(target: str, dtype: str) -> Iterator[Compiled]:
    """Compile every kernel for one target with every option on."""
    for module in _MODULES:
        for name, kernel in vars(module).items():
            if name.endswith("_kernel") and kernel.__module__ == module.__name__:
                yield _compile(f"{module.__name__.rpartition('.')[2]}.{name}", kernel, TARGETS[target], dtype)


def _compile(name: str, kernel: Any, target: GPUTarget, dtype: str) -> Compiled:
    constants = {p.name: _CONSTANTS.get(p.name, True) for p in kernel.params if p.is_constexpr}
    tables = name.startswith(("unit", "scales", "follow"))
    types = {p.name: "constexpr" if p.is_constexpr else _type(p.name, dtype, tables) for p in kernel.params}
    made = triton.compile(ASTSource(kernel, types, constexprs=constants), target=target)
    if target.backend == "cuda":
        return Compiled(name, len(made.asm["cubin"]), *_resources(made.asm["cubin"]))
    text = made.asm["amdgcn"]
    registers = re.search(r"\.vgpr_count:\s+(\d+)", text)
    spills = re.search(r"\.vgpr_spill_count:\s+(\d+)", text)
    count = int(registers[1]) if registers else None
    return Compiled(name, len(made.asm["hsaco"]), count, int(spills[1]) if spills else 0)


def _type(name: str, dtype: str, tables: bool) -> str:
    if tables:
        return "i32" if name in _NUMBERS_BESIDE_TABLES else "*fp32" if name in _SINGLE_BESIDE_TABLES else "*i64"
    if name in _NUMBERS:
        return _NUMBERS[name]
    if name in _INTEGERS:
        return "i32"
    return "*fp32" if name in _SINGLE else f"*{dtype}"


def _resources(cubin: bytes) -> tuple[int | None, int]:
    """Return registers and bytes spilled, by NVIDIA's disassembler where it is at hand (Triton brings one)."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    if not tool.exists():
        return None, 0
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    found = {key: int(value) for key, value in re.findall(r"(REG|LOCAL):(\d+)", text)}
    return found.get("REG"), found.get("LOCAL", 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", nargs="*", default=["fp32", "bf16", "fp16"])
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "kernels.md")
    options = parser.parse_args()
    lines = [f"Triton {triton.__version__}; registers per thread / bytes spilled; compiled, not run.", ""]
    for dtype in options.dtype:
        columns = {target: {c.name: c for c in compile_all(target, dtype)} for target in TARGETS}
        lines += [f"| {dtype} | " + " | ".join(columns) + " |", "|---|" + "--:|" * len(columns)]
        for name in next(iter(columns.values())):
            cells = (f"{made[name].registers} / {made[name].spills}" for made in columns.values())
            lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
        lines.append("")
    options.output.write_text("\n".join(lines))
    print("\n".join(lines))


if __name__ == "__main__":
    main()

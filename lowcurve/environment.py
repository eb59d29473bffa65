"""What does a number depend on? The versions, the code's commit and the processor that computed it."""

import platform
import subprocess
from functools import cache
from pathlib import Path

import numpy
import torch

import lowcurve


def environment() -> dict[str, str]:
    """Return the versions and the processor that a number depends on."""
    return {
        "lowcurve": lowcurve.__version__,
        "commit": git_revision() or "",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "processor": processor(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
    }


@cache  # what was imported does not change
def git_revision() -> str | None:
    """Return the commit of the code that runs, with `+` where files differ; None outside a repository."""
    here = Path(__file__).parent
    try:
        command = ["git", "status", "--porcelain=v2", "--branch", "--untracked-files=no"]
        shown = subprocess.run(command, cwd=here, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    lines = shown.splitlines()
    revision = next((line.split()[2] for line in lines if line.startswith("# branch.oid ")), "(initial)")
    changed = any(not line.startswith("#") for line in lines)
    return revision + "+" * changed if revision != "(initial)" else None


def processor() -> str:
    """Return the processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )

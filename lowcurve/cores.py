"""How many cores was this process given, and how do its threads wait? Known before PyTorch is imported.

More threads than cores are worse than one: each waits for another that has no core to run on. And a thread that spins
while it waits takes the core from the one that it waits for: on a crowded machine steps took several times as long.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

THREADS, WAITING = "OMP_NUM_THREADS", "OMP_WAIT_POLICY"
_chosen_here: set[str] = set()  # variables that were not set by whoever started this process


def given_cores() -> int:
    """Return how many cores this process may use: what affinity, control groups and Slurm allow, the least of them.

    >>> given_cores() >= 1
    True
    """
    return max(1, min([_allowed(), *_quotas(), *_slurm()]))


def settle() -> None:
    """Give OpenMP as many threads as cores, and let waiting threads sleep; what is set already stays.

    OpenMP reads its variables when it is loaded, so that this works only before `import torch`.
    """
    for name, value in ((THREADS, str(given_cores())), (WAITING, "passive")):
        if name not in os.environ:
            os.environ[name] = value
            _chosen_here.add(name)


@contextmanager
def unsettled() -> Iterator[None]:
    """Hide the number of threads that `settle` chose here from processes that other machines start."""
    hidden = os.environ.pop(THREADS) if THREADS in _chosen_here and THREADS in os.environ else None
    try:
        yield
    finally:
        if hidden is not None:
            os.environ[THREADS] = hidden


def _allowed() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _quotas(groups: Path = Path("/sys/fs/cgroup"), mine: Path = Path("/proc/self/cgroup")) -> Iterator[int]:
    """Yield the whole cores that each control group above this process may use, of version 1 and 2."""
    try:
        lines = mine.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers or "cpu" in controllers.split(","):
            root = groups / "cpu" if controllers else groups
            folder = root / path.lstrip("/")
            for group in (folder, *folder.parents[: len(folder.parts) - len(root.parts)]):
                if quota := _quota(group):
                    yield int(quota)


def _quota(group: Path) -> float | None:
    """Return how many cores a control group may use, if that is limited."""
    try:
        if (group / "cpu.max").exists():
            time, period = (group / "cpu.max").read_text().split()
        else:
            time, period = ((group / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
        return int(time) / int(period) if time not in ("max", "-1") else None
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _slurm() -> Iterator[int]:
    """Yield the cores of this task of a Slurm job: asked for by task, or else its share of those on this node."""
    numbers = {name: os.environ.get(f"SLURM_{name}", "") for name in ("CPUS_PER_TASK", "CPUS_ON_NODE")}
    if numbers["CPUS_PER_TASK"].isdecimal():
        yield int(numbers["CPUS_PER_TASK"])
    elif numbers["CPUS_ON_NODE"].isdecimal():
        tasks, nodes = (int(os.environ.get(f"SLURM_STEP_NUM_{name}", "1")) for name in ("TASKS", "NODES"))
        yield int(numbers["CPUS_ON_NODE"]) // max(1, -(-tasks // nodes))

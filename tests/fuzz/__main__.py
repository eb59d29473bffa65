"""Hunt for wrong numbers: `python -m tests.fuzz --minutes 60 [--seed S] [--oracle NAME]`."""

import os

# Some virtual machines announce AMX and then refuse it; as in `tests/conftest.py`.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import argparse
import sys
import time
from contextlib import suppress

import torch
from rich.console import Console
from rich.table import Table

from lowcurve.progress import bars
from tests.fuzz.hunt import Counts, Found, hunt
from tests.fuzz.oracles import ORACLES
from tests.fuzz.shrink import shrink

_SLICE = 4.0  # seconds for one oracle before the next has its turn
_SHOWN = 3  # findings of one kind that are shrunk and printed


def main() -> int:
    """Give every oracle its turns until time is up; return 1 where something was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="how long to hunt")
    parser.add_argument("--seed", type=int, default=0, help="where the sequence of networks starts")
    parser.add_argument("--oracle", choices=list(ORACLES), help="ask one oracle only")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    names = [arguments.oracle] if arguments.oracle else list(ORACLES)
    counts, found = Counts(), _Log()
    until, seeds = time.monotonic() + 60 * arguments.minutes, dict.fromkeys(names, arguments.seed)
    with suppress(KeyboardInterrupt), bars() as display:
        task = display.add_task("hunting", total=int(60 * arguments.minutes), note="")
        while time.monotonic() < until:
            for name in names:
                end = min(time.monotonic() + _SLICE, until)
                while time.monotonic() < end:
                    hunt(name, range(seeds[name], seeds[name] + 1), counts, found)
                    seeds[name] += 1
                note = f"{counts.networks.total()} networks, {len(found.kinds)} kinds of findings, {name}"
                display.update(task, completed=int(60 * arguments.minutes - until + time.monotonic()), note=note)
    _summary(counts, found)
    return 1 if found.kinds else 0


class _Log:
    """Counts findings by kind and prints the first ones of each, shrunk."""

    def __init__(self) -> None:
        self.kinds: dict[tuple[str, str], int] = {}
        self.console = Console(width=140, highlight=False, markup=False)

    def __call__(self, found: Found) -> None:
        key = (found.oracle, found.kind)
        self.kinds[key] = self.kinds.get(key, 0) + 1
        if self.kinds[key] <= _SHOWN:
            smallest = shrink(found)
            self.console.print(f"# ---- finding {sum(self.kinds.values())} ----\n{smallest}\n", soft_wrap=True)


def _summary(counts: Counts, found: _Log) -> None:
    table = Table("oracle", "networks", "refused", "findings", title="what was seen")
    for name, number in counts.networks.items():
        wrong = sum(times for (oracle, _), times in found.kinds.items() if oracle == name)
        table.add_row(name, str(number), str(counts.refused[name]), str(wrong))
    found.console.print(table)
    found.console.print("features: " + ", ".join(f"{name} {times}" for name, times in counts.features.most_common()))
    for (oracle, kind), times in found.kinds.items():
        found.console.print(f"{times} × {oracle}: {kind}")


if __name__ == "__main__":
    sys.exit(main())

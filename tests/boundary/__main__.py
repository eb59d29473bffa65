"""`python -m tests.boundary [NAME…]`: make every bad call and run every bad command line; count how they end."""

import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.boundary import files, functions, verbs


def _models(place: Path) -> tuple[int, list[str]]:
    return files.failures(files.model_lines(), verbs.prepared(place))


def _damaged(place: Path) -> tuple[int, list[str]]:
    names = verbs.prepared(place) | {"page": str(place / "page.html")}
    return files.failures(files.file_lines(files.finished_run(place, names), place, every=5), names)


def main(names: list[str]) -> int:
    """Print a line per function and verb, and those calls that did not end in a refusal."""
    total, bad = 0, 0
    calls = {f"lc.{name}": partial(functions.failures, name) for name in functions.public()}
    commands: dict[str, Callable[[Path], tuple[int, list[str]]]] = {
        f"lowcurve {verb}": partial(verbs.failures, verb) for verb in verbs.verbs()
    }
    commands |= {"wrong models": _models, "damaged runs": _damaged}
    for name in names or [*calls, *commands]:
        started = time.perf_counter()
        with tempfile.TemporaryDirectory() as place:
            os.chdir(place)
            count, wrong = calls[name]() if name in calls else commands[name](Path(place))
        total, bad = total + count, bad + len(wrong)
        print(f"{name}: {count} tried, {len(wrong)} not as they should, {time.perf_counter() - started:.1f} s")
        for line in wrong:
            print("   ", line)
    print(f"{total} tried, {total - bad} as they should, {bad} not")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

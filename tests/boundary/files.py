"""Verbs pointed at models that are wrong and at run folders with a damaged file."""

import shutil
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

from tests.boundary import subjects, verbs
from tests.boundary.outcome import ACCEPTED, REFUSED
from tests.boundary.verbs import Line

VERBS: dict[str, list[str]] = {
    "measure": ["--samples=4", "--stability=0"],
    "attack": ["--samples=4", "--attacks=fgsm", "--radii=0.1"],
    "certify": ["--samples=4"],
    "convert": ["--samples=4"],
    "train": ["--output={runs}", "--set=train.epochs=1", "--set=data.limit_train=8", "--set=data.limit_test=4",
              "--resume=auto"],
    "report": ["--output={page}"],
}  # fmt: skip


def model_lines(odd: bool = True) -> Iterator[tuple[Line, bool]]:
    """Yield command lines on wrong models, which must be refused, and on odd ones, which may."""
    for verb in ("measure", "attack", "certify", "convert"):
        for title in (*subjects.WRONG, *(subjects.ODD if odd else ())):
            target = f"tests.boundary.subjects:{title.replace(' ', '_')}"
            yield Line(verb, title, [verb, target, "--data=digits", *VERBS[verb]]), title in subjects.WRONG


def _write(data: bytes) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(data) and None


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES: dict[str, Callable[[Path], None]] = {
    "gone": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b"") and None,
    "half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]) and None,
    "bytes": _write(bytes(range(256))),
    "list": _write(b"[]"),
    "object": _write(b"{}"),
    "null": _write(b"null"),
    "deep": _write(b"[" * 100_000),
    "NaN": lambda path: path.write_bytes(path.read_bytes().replace(b"0", b"NaN")) and None,
    "text for numbers": lambda path: path.write_bytes(path.read_bytes().replace(b": 1", b': "x"')) and None,
    "a folder": _directory,
}


def file_lines(run: Path, place: Path, every: int = 1) -> Iterator[tuple[Line, bool]]:
    """Damage one file of a copy of the run at a time, and point a verb at it; of all such, yield one in `every`."""
    files = [path.relative_to(run) for path in sorted(run.rglob("*")) if path.is_file()]
    cases = list(product(files, DAMAGES, VERBS))
    for number, (file, title, verb) in enumerate(cases[::every]):
        copy = place / f"run-{number}"
        shutil.copytree(run, copy)
        DAMAGES[title](copy / file)
        first = ["digits-mlp-relu", f"--from={copy}"] if verb == "train" else [str(copy)]
        yield Line(verb, f"{file} {title}", [verb, *first, *VERBS[verb]]), False
        shutil.rmtree(copy)


def finished_run(place: Path, names: dict[str, str]) -> Path:
    """Train a small run, measure and attack it; return its folder."""
    import lowcurve as lc
    from lowcurve.training.config import parse_config

    recipe = {
        "output": str(place),
        "name": "finished",
        "data": {"limit_train": 16, "limit_test": 8},
        "model": {"name": "mlp", "width": 2},
        "method": {"name": "relu"},
        "train": {"epochs": 1},
    }
    folder = lc.train(parse_config(recipe)).folder
    for verb in ("measure", "attack"):
        found = verbs.run(Line(verb, "run", [verb, str(folder), *VERBS[verb]]), names)
        assert found.what == ACCEPTED, found
    return folder


def failures(lines: Iterator[tuple[Line, bool]], names: dict[str, str]) -> tuple[int, list[str]]:
    """Run command lines; return how many, and those that ended in neither success nor one line."""
    count, wrong = 0, []
    for line, must in lines:
        count += 1
        found = verbs.run(line, names)
        if not found.good or (must and found.what != REFUSED):
            wrong.append(f"{line} ({line.parameter}): {found}")
    return count, wrong

"""Every option of every verb × nonsense of its kind, read off the command line's own description of itself."""

import contextlib
import inspect
import io
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_type_hints
from unittest.mock import patch

import typer
from typer.models import ArgumentInfo

from lowcurve import cli
from lowcurve.commands import VERBS
from lowcurve.data import load_dataset
from tests.boundary import values
from tests.boundary.outcome import ACCEPTED, RAISED, REFUSED, Outcome

GOOD = "tests.boundary.subjects:net"
WORK = ["--data=digits", "--samples=4"]
# The arguments with which a verb runs where nothing is wrong; those of `RUN` are filled in.
ARGUMENTS: dict[str, list[str]] = {
    "train": ["{recipe}", "--output={runs}"],
    "measure": [GOOD, *WORK, "--stability=0"],
    "attack": [GOOD, *WORK, "--attacks=fgsm"],
    "certify": [GOOD, *WORK],
    "tune": [GOOD, *WORK, "--betas=10", "--steps=pgd=1,apgd-t=1,square=1"],
    "convert": [GOOD, "--input-size=1,8,8", "--samples=4"],
    "reproduce": ["table-geometry", "--output={runs}", "--results={runs}"],
    "report": ["{runs}"],
    "data fetch": ["svhn", "--mirror=http://localhost:9/nothing", "--data-dir={runs}"],
    "demo": ["--output={runs}"],
}
# Texts that mean something to these options.
FINE: dict[str, set[str]] = {
    "norm": {"inf"},
    "radii": {"1,5"},
    "betas": {"1,5"},
}
# Further nonsense for options that are texts with a grammar of their own.
GRAMMARS: dict[str, list[str]] = {
    "samples": [*values.WHOLE_TEXTS, "0", "0.0", "1.5", "1,2", "all,1"],
    "betas": [*values.NUMBER_TEXTS, "0", "0.1,,0.2", "-1", "nan", "10;5"],
    "radii": [*values.NUMBER_TEXTS, "0", "0.1,,0.2", "0.1;0.2", "0.1,-1", "0.1,nan"],
    "norm": [*values.NUMBER_TEXTS, "1", "0", "2.5", "L2"],
    "steps": [*values.WHOLE_TEXTS, "pgd=inf", "pgd=0", "pgd=-1", "pgd=1.5", "pgd=²", "pgd", "nothing=3", "pgd=1,,"],
    "seeds": [*values.WHOLE_TEXTS, "a", "0,a", "0,,1", "-1"],
    "input_size": [*values.WHOLE_TEXTS, "-3,3", "0,3", "3,,3", "3;3", "999999999,3,3", "1,1,1,1,1,1,1", "2,2,2"],
    "changes": ["a.b.c=3", "train.epochs", "train.epochs=-1", "train.device=meta", "train.seed=99999999999999999999",
                "model.width=999999999", "model.width=0", "train.lr=nan", "train.lr=1e999", "data.name=nothing",
                "train=3", "train.epochs.x=3", "=3", "train.epochs={a=1}", "model.name=[1]", "name=a/b", "name=\0",
                "method.name=nothing", "method.name=lcnn++", "train.batch_size=1", "train.device=cuda:99",
                "train.device=tpu", "data.augmentation=['x']", "model.from=nothing", "model.skip=['nothing']",
                "output=/dev/null", "data.name='folder:/nothing'", "train.epochs=" + "[" * 2000 + "]" * 2000],
    "overrides": ["a.b.c=3", "train.epochs=-1", "train.epochs", "train=3", "model.width=0", "train.device=meta"],
    "target": ["", "nothing", "nothing:nothing", "os:getcwd", "os:nothing", ":", "a:b:c", "\0", "..", "{file}"],
    "recipe": ["{nested}", "{binary}", "{deep}", "{array}", "{file}"],
}  # fmt: skip
GRAMMARS["versus"] = GRAMMARS["source"] = GRAMMARS["target"]


@dataclass(frozen=True)
class Line:
    """A command line with one thing wrong."""

    verb: str
    parameter: str
    words: list[str]

    def __str__(self) -> str:
        return f"lowcurve {' '.join(word if len(word) < 60 else word[:60] + '…' for word in self.words)}"


@dataclass(frozen=True)
class Parameter:
    """An option or argument of a verb: how it is written, and what types it takes."""

    name: str
    option: str | None
    kinds: frozenset[Any]
    default: Any


def verbs() -> dict[str, Callable[..., None]]:
    """Return the function behind every verb, by the verb's words."""
    found: dict[str, Callable[..., None]] = {}
    for name, verb in VERBS.items():
        if isinstance(verb, typer.Typer):
            for command in verb.registered_commands:
                assert command.callback is not None
                found[f"{name} {command.name or command.callback.__name__}"] = command.callback
        else:
            found[name] = verb
    return found


def parameters(verb: str) -> Iterator[Parameter]:
    """Read the parameters off the function's annotations."""
    function = verbs()[verb]
    hints = get_type_hints(function, include_extras=True)
    for name, parameter in inspect.signature(function).parameters.items():
        base, info = get_args(hints[name])[:2]
        named = [word for word in getattr(info, "param_decls", None) or () if word.startswith("--")]
        option = named[0].split("/")[0] if named else f"--{name.replace('_', '-')}"
        yield Parameter(
            name, None if isinstance(info, ArgumentInfo) else option, frozenset(_kinds(base)), parameter.default
        )


def _kinds(annotation: Any) -> set[Any]:
    inner = [kind for part in get_args(annotation) for kind in _kinds(part)]
    return set(inner) or {annotation}


def lines(verb: str) -> Iterator[Line]:
    """Yield the command lines of one verb: a row of bad values per option and argument."""
    for parameter in parameters(verb):
        for value in dict.fromkeys(_bad(parameter)):
            if value in FINE.get(parameter.name, ()) or value == parameter.default:
                continue
            if parameter.option:
                words = [*ARGUMENTS.get(verb, []), f"{parameter.option}={value}"]
            else:
                words = [*(word for word in ARGUMENTS.get(verb, []) if word.startswith("--")), "--", value]
            yield Line(verb, parameter.name, [*verb.split(), *words])


def _bad(parameter: Parameter) -> list[str]:
    if parameter.name in GRAMMARS:
        return [*values.TEXTS, *GRAMMARS[parameter.name]]
    rows = {bool: ["maybe", "2", "nan"], int: values.WHOLE_TEXTS, float: values.NUMBER_TEXTS, Path: values.PATHS}
    return next((row for kind, row in rows.items() if kind in parameter.kinds), values.TEXTS)


def prepared(place: Path) -> dict[str, str]:
    """Make the files that command lines name; return what stands for them."""
    (place / "runs").mkdir()
    texts = {
        "file": "just a file\n",
        "recipe": '[data]\nlimit_train = 8\nlimit_test = 4\n[model]\nname = "mlp"\nwidth = 2\n[train]\nepochs = 1\n',
        "nested": "train.epochs.more = 3\n",
        "deep": "a = " + "[" * 3000 + "]" * 3000 + "\n",
        "array": "[[train]]\nepochs = 1\n",
    }
    for name, text in texts.items():
        (place / f"{name}.toml").write_text(text)
    (place / "binary.toml").write_bytes(bytes(range(256)))
    return {name: str(place / f"{name}.toml") for name in (*texts, "binary")} | {"runs": str(place / "runs")}


class _Started(Exception):
    """Work began that a bad command line must not begin."""


def run(line: Line, names: dict[str, str]) -> Outcome:
    """Run a command line in this process."""
    words = [_filled(word, names) for word in line.words]
    out, err = io.StringIO(), io.StringIO()
    argv, quiet = patch.object(sys, "argv", ["lowcurve", *words]), contextlib.redirect_stdout(out)
    with argv, _shortcuts(), quiet, contextlib.redirect_stderr(err):
        try:
            cli.main()
            code: Any = 0
        except SystemExit as stop:
            code = stop.code
        except BaseException as error:
            return Outcome(RAISED, f"{type(error).__name__}: {error}")
    return _judged(code, err.getvalue())


@contextlib.contextmanager
def _shortcuts() -> Iterator[None]:
    """Build the commands and read the digits once; let no work begin that a bad command line must not begin."""
    started = patch("lowcurve.experiments.reproduce.reproduce_all", side_effect=_Started())
    loaded = patch("lowcurve.data.load_dataset", side_effect=_load_dataset)
    with started, loaded, patch.object(cli, "app", _command()):
        yield


@cache
def _command() -> Any:
    return typer.main.get_command(cli.app)


_load_dataset = cache(load_dataset)


def _judged(code: Any, said: str) -> Outcome:
    rows = [row for row in said.splitlines() if row.strip()]
    if code in (None, 0):
        return Outcome(ACCEPTED)
    if code != 2 or "Traceback" in said:
        return Outcome(RAISED, f"exit {code}: {' | '.join(rows)}")
    usage = "Usage: " in said or "─ Error ─" in said  # typer's own words
    if not usage and len([row for row in rows if row.startswith("error: ")]) != 1:
        return Outcome(RAISED, f"not one line: {' | '.join(rows)}")
    return Outcome(REFUSED, said)


def _filled(word: str, names: dict[str, str]) -> str:
    for name, path in names.items():
        word = word.replace("{" + name + "}", path)
    return word


def failures(verb: str, place: Path) -> tuple[int, list[str]]:
    """Return the number of bad command lines of a verb, and those that were not refused in one line."""
    names, count, wrong = prepared(place), 0, []
    for line in lines(verb):
        count += 1
        found = run(line, names)
        if found.what != REFUSED:
            wrong.append(f"{line}: {found}")
    return count, wrong

"""A full disk, a quota or a read-only place ends each verb with one message that names the path and a remedy."""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lowcurve import files
from lowcurve.cli import app
from lowcurve.errors import UserError
from lowcurve.training.config import dump_config
from lowcurve.training.loop import train
from lowcurve.training.runs import Run
from tests.training.makers import recipe

QUICK = {"model": {"name": "mlp", "width": 4}, "method": {"name": "lcnn"}, "train__epochs": 1}
VERBS = {
    "train": ["train", "RECIPE", "--output", "OUT"],
    "measure": ["measure", "RUN", "--samples", "4", "--stability", "0", "--output", "OUT"],
    "attack": ["attack", "RUN", "--samples", "4", "--attacks", "fgsm", "--distances", "1", "--output", "OUT"],
    "certify": ["certify", "RUN", "--samples", "4", "--output", "OUT"],
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(recipe(tmp_path_factory.mktemp("full"), **QUICK))


def outcome(verb: str, run: Run, out: Path) -> BaseException | None:
    recipe_file = out.parent / "recipe.toml"
    names = {"RUN": str(run.folder), "RECIPE": str(recipe_file), "OUT": str(out)}
    if verb == "train" and not recipe_file.exists():
        recipe_file.write_text(dump_config(recipe(out.parent, **QUICK)))
    return CliRunner().invoke(app, [names.get(word, word) for word in VERBS[verb]]).exception


@pytest.mark.parametrize("verb", VERBS)
def test_a_file_in_the_place_of_the_folder(verb: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    for out in (tmp_path / "out", tmp_path / "out" / "below"):
        if verb == "train" and out.name == "below":
            continue
        error = outcome(verb, run, out)
        refused = isinstance(error, SystemExit) and error.code == 2  # the option itself says it
        assert refused or (isinstance(error, UserError) and "cannot write" in str(error)), error


@pytest.mark.parametrize("verb", VERBS)
def test_every_single_write_may_fail(verb: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the disk be full after n calls that reach it, for n up to where the verb succeeds."""
    failed = 0
    for number in range(0, 60, 3):
        out = tmp_path / f"{number}" / "out"
        out.parent.mkdir()
        with monkeypatch.context() as patch:
            calls = iter(range(number + 1))
            for name in ("write", "fsync"):
                patch.setattr(files.os, name, _full_at(getattr(os, name), calls))
            error = outcome(verb, run, out)
        if error is None:
            break
        failed += 1
        assert isinstance(error, UserError), (number, repr(error))
        assert "No space left on device; free some space" in str(error)
        assert not list(out.rglob("*.partial"))
    else:
        pytest.fail("it never succeeded")
    assert failed >= 2


def _full_at(real: Callable[..., object], calls: Iterator[int]) -> Callable[..., object]:
    def call(*arguments: object) -> object:
        if next(calls, None) is not None:
            return real(*arguments)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return call

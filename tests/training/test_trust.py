"""A run folder from a stranger runs nothing: whatever its files name, only the caller's names are imported."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import lowcurve as lc
from lowcurve.cli import app
from lowcurve.errors import UserError
from lowcurve.factory import load_factory
from lowcurve.training.config import dump_config
from lowcurve.training.loop import train
from lowcurve.training.runs import Run, load
from tests.training.makers import recipe, same_bits, small_net, weights

ROOT = Path(__file__).parents[2]
EVIL = "sharedrun.evil:make"
TRAP = """
from pathlib import Path
Path({mark!r}).write_text("executed")
from tests.training.makers import small_net as make
"""
VERBS = {
    "measure": ["measure", "RUN", "--samples", "4", "--stability", "0"],
    "attack": ["attack", "RUN", "--samples", "4"],
    "versus": ["attack", "PLAIN", "--versus", "RUN", "--samples", "2", "--attacks", "fgsm"],
    "certify": ["certify", "RUN", "--samples", "4"],
    "convert": ["convert", "RUN"],
    "report": ["report", "RUN"],
    "train": ["train", "RUN/config.toml"],
    "resume": ["train", "RUN/config.toml", "--resume", "auto"],
    "from": ["train", "PLAIN/../mine.toml", "--from", "RUN"],
    "nested": ["measure", "TUNED"],
}
DRIVER = """
import json, os, sys, lowcurve
from lowcurve.cli import app
def attempt(call):
    try:
        call()
        return ""
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
verbs, run, said = json.loads(sys.argv[1]), sys.argv[2], {}
assert sys.path[0] == "", "the working directory, whichever it is"
for where in sys.argv[3:]:
    os.chdir(where)
    said[where] = {verb: attempt(lambda: app(words, standalone_mode=False)) for verb, words in verbs.items()}
    said[where]["load"] = attempt(lambda: lowcurve.load(run))
print("\\n" + json.dumps(said))
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an honest run, a recipe of the user, and a stranger's run that names code beside its files."""
    place = tmp_path_factory.mktemp("downloads")
    quick = {"train__epochs": 1, "method": {"name": "lcnn"}}
    train(recipe(place, name="plain", model={"name": "mlp", "width": 4}, **quick))
    (place / "mine.toml").write_text(dump_config(recipe(place, name="mine", model={"name": "mlp"}, **quick)))
    made = train(recipe(place, name="sharedrun", **quick))
    config = made.folder / "config.toml"
    config.write_text(config.read_text().replace("tests.training.makers:small_net", EVIL))
    (made.folder / "evil.py").write_text(TRAP.format(mark=str(place / "mark")))
    tuned = recipe(place, name="tuned", model={"from": str(made.folder)}, **quick)
    train(tuned, factory="tests.training.makers:small_net")  # a run of the user whose source/ names the code
    inner = made.folder / "sharedrun"  # for those who work inside the folder
    inner.mkdir()
    (inner / "evil.py").write_text(TRAP.format(mark=str(place / "mark")))
    return place


@pytest.fixture(autouse=True)
def untouched(place: Path) -> Iterator[None]:
    """Nothing ran, before or after."""
    yield
    assert not (place / "mark").exists()


def test_no_verb_imports_what_the_files_of_a_run_name(place: Path) -> None:
    """In a process whose import path begins with the working directory: beside the run, in it, and elsewhere."""
    places = [str(place / where) for where in (".", "sharedrun", "plain")]
    names = {"RUN": place / "sharedrun", "PLAIN": place / "plain", "TUNED": place / "tuned"}
    verbs = {verb: [_filled(word, names) for word in words] for verb, words in VERBS.items()}
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, json.dumps(verbs), str(place / "sharedrun"), *places],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert list(found) == places
    for where, verb, said in ((where, verb, said) for where, verbs in found.items() for verb, said in verbs.items()):
        assert said or verb == "report", f"{verb} in {where} ended as if all were well"  # a report needs no network
        if verb != "report":  # which reads results only
            assert said.startswith("UserError") and EVIL in said and "would import and run" in said, (where, verb, said)


def _filled(word: str, names: dict[str, Path]) -> str:
    for name, path in names.items():
        word = word.replace(name, str(path))
    return word


def test_what_the_caller_passes_or_names_is_used(place: Path, tmp_path: Path) -> None:
    run = place / "sharedrun"
    expected = weights(Run(run))
    converted = load(run, factory="tests.training.makers:small_net")
    given = small_net()
    before = {key: value.clone() for key, value in given.state_dict().items()}
    for model in (converted, load(run, factory=small_net), load(run, model=given)):
        assert same_bits(dict(model.state_dict()), expected) and not model.training
    assert same_bits(before, dict(given.state_dict()))  # a plain network is not changed: its copy is converted
    with torch.no_grad():
        next(converted.parameters()).zero_()
    assert load(run, model=converted) is converted and same_bits(dict(converted.state_dict()), expected)
    with pytest.raises(UserError, match="do not fit the network"):
        load(run, model=torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)))


def test_the_command_line_trusts_by_name(place: Path) -> None:
    words = ["measure", str(place / "sharedrun"), "--samples", "2", "--stability", "0"]
    result = CliRunner().invoke(app, [*words, "--trust", "tests.training.makers:small_net"])
    assert result.exit_code == 0, result.output
    assert CliRunner().invoke(app, [*words, "--trust"]).exit_code == 2


def test_a_recipe_of_the_user_may_name_a_function(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(dump_config(recipe(tmp_path, train__epochs=1)))
    assert CliRunner().invoke(app, ["train", str(path)]).exit_code == 0
    run = tmp_path / "run"
    assert "would import and run" in str(CliRunner().invoke(app, ["train", str(run / "config.toml")]).exception)
    trusted = [str(run / "config.toml"), "--output", str(tmp_path / "b"), "--trust", "tests.training.makers:small_net"]
    assert CliRunner().invoke(app, ["train", *trusted]).exit_code == 0


def test_the_same_caller_loads_what_it_trained(tmp_path: Path) -> None:
    run = lc.train(recipe(tmp_path, train__epochs=1))
    assert same_bits(dict(lc.load(run).state_dict()), weights(run))
    with pytest.raises(UserError, match="would import and run"):
        lc.load(run.folder)


def test_the_working_directory_is_importable_only_while_a_factory_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mymodel.py").write_text("import sys\nfrom torch import nn\nmake = lambda: nn.Linear(2, 2)\n")
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    assert isinstance(load_factory("mymodel:make"), torch.nn.Linear)
    assert sys.path == before


def test_a_circle_of_sources_is_refused(tmp_path: Path) -> None:
    run = train(recipe(tmp_path, train__epochs=1)).folder
    (run / "source").symlink_to(".")
    with pytest.raises(UserError, match="got a link"):
        load(run, factory=small_net)


def test_python_m_in_a_strangers_folder_imports_nothing_of_it(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise SystemExit('a file of the folder was run')\n")
    words = [sys.executable, "-m", "lowcurve", "--help"]
    done = subprocess.run(
        words, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr

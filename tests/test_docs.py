"""Every code block of the documentation runs, and every command in it is one that the program knows."""

import pkgutil
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import typer.main
from torch import nn

import lowcurve as lc
from lowcurve.cli import app
from lowcurve.methods import ACTIVATIONS

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def blocks(path: Path, *languages: str) -> list[str]:
    return [code for language, code in BLOCK.findall(path.read_text()) if language in languages]


def given() -> dict[str, object]:
    """What a page may take for granted: a network of the reader's and a batch for it."""
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 10)).eval()
    x, y = torch.rand(8, 1, 8, 8), torch.randint(0, 10, (8,))
    return {
        "my_resnet": net,
        "model": net,
        "example_input": x,
        "x": x,
        "y": y,
    }


@pytest.fixture
def tables():
    """Take out again what a page registers."""
    named = (lc.METHODS, lc.TERMS, ACTIVATIONS, lc.ATTACKS, lc.DATASETS, lc.MODELS, lc.EXPERIMENTS)
    known: list[tuple[dict, dict]] = [(table, dict(table)) for table in named]
    yield
    for table, before in known:
        table.clear()
        table.update(before)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.name)
@pytest.mark.usefixtures("tables")
def test_python_blocks_run_in_order(page, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    names = given()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for code in blocks(page, "python"):
            exec(compile(code, page.name, "exec"), names)


def commands() -> list[tuple[str, str]]:
    found = []
    for page in [*PAGES, ROOT / "README.md"]:
        for block in blocks(page, "", "sh", "bash", "console"):
            for line in block.replace("\\\n", " ").splitlines():
                position = re.search(r"(?:^|-m )lowcurve ", line)
                if position:
                    found.append((page.name, line[position.end() :]))
    return found


@pytest.mark.parametrize(("page", "line"), commands())
def test_commands_are_known(page, line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = shlex.split(line, comments=True)
    for option, value in pairwise(words):
        if option == "--data-dir":  # which must exist
            (tmp_path / value.lstrip("/")).mkdir(parents=True)
            words[words.index(value)] = value.lstrip("/")
    if "|" in words or not words:  # a list of alternatives, not a command
        return
    command = typer.main.get_command(app)
    while hasattr(command, "commands"):
        name, *words = words
        command = command.commands[name]
    context = command.make_context(command.name, words)  # parses, refuses what it does not know, runs nothing
    assert not context.args


REFERENCE = re.findall(r"^::: (\S+)$", (ROOT / "docs" / "reference.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize("path", REFERENCE)
def test_the_reference_names_what_exists(path):
    assert pkgutil.resolve_name(path).__doc__


def test_the_reference_has_every_public_name():
    tables = {"TERMS", "METHODS", "MODELS", "DATASETS", "ATTACKS", "EXPERIMENTS", "__version__"}
    assert {f"lowcurve.{name}" for name in lc.__all__ if name not in tables} <= {*REFERENCE}


def test_every_method_has_its_part_of_the_page():
    headings = re.findall(r"^## .*`(.+)`$", (ROOT / "docs" / "methods.md").read_text(), re.MULTILINE)
    assert {name for name in lc.METHODS if "+" not in name} <= {*headings}


def test_every_page_is_in_the_contents_and_has_its_pictures():
    contents = (ROOT / "mkdocs.yml").read_text()
    assert [page.name for page in PAGES if not re.search(rf"[ -]{page.name}$", contents, re.MULTILINE)] == []
    pictures = [(page, found) for page in PAGES for found in re.findall(r"!\[.*?\]\((.*?)\)", page.read_text())]
    assert [found for page, found in pictures if not (page.parent / found).is_file()] == []


def test_every_example_is_on_its_page():
    page = (ROOT / "docs" / "integrations.md").read_text()
    assert [
        path.name for path in (ROOT / "examples").glob("*.py") if f'--8<-- "examples/{path.name}"' not in page
    ] == []


@pytest.mark.skipif(find_spec("material") is None, reason="mkdocs-material is not installed (pip install '.[docs]')")
def test_the_site_builds_without_a_warning(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    reference = (tmp_path / "site" / "reference" / "index.html").read_text()
    assert 'id="lowcurve.convert"' in reference and "init_beta" in reference  # public paths, constructor arguments

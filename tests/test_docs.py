"""Every code block of the documentation runs, and every command in it is one that the program knows."""

import re
import shlex
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

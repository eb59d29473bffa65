"""Bars count samples, not batches, and say what is at work."""

from contextlib import contextmanager
from io import StringIO

import pytest
import torch
from rich.console import Console
from torch import nn

from lowcurve import progress
from lowcurve.attacks.evaluate import evaluate
from lowcurve.data.dataset import Split
from lowcurve.geometry.dataset import measure

SPLIT = Split(torch.randint(0, 256, (10, 6), dtype=torch.uint8), torch.zeros(10, dtype=torch.int64))
NET = nn.Linear(6, 3)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float, float, str]]:
    """What the bars show after every change: description, completed, total, note."""
    states: list[tuple[str, float, float, str]] = []

    @contextmanager
    def watched():
        with progress.make_bars(Console(file=StringIO(), force_terminal=True, width=80)) as display:
            advance = display.advance

            def noted(task, by=1):
                advance(task, by)
                now = display.tasks[0]
                states.append((now.description, now.completed, now.total, now.fields["note"]))

            display.advance = noted
            yield display

    monkeypatch.setattr(progress, "bars", watched)
    return states


def test_attacks_count_samples(seen: list) -> None:
    evaluate(NET, SPLIT, ["fgsm", "pgd"], [0.1], steps={"pgd": 1}, batch_size=4)
    assert [state[1:3] for state in seen] == [(4, 20), (8, 20), (12, 20), (16, 20), (18, 20), (20, 20)]
    assert [state[3] for state in seen[:3]] == ["fgsm at 0.1", "pgd at 0.1", "fgsm at 0.1"]


def test_measures_count_samples(seen: list) -> None:
    measure(NET, SPLIT, of=("margin",), batch_size=4)
    assert seen == [("measuring", done, 10, "") for done in (4, 8, 10)]

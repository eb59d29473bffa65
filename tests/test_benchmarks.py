"""The clocks of the benchmarks: on a CPU by the wall, on a GPU by events of its stream (stood in for here)."""

import pytest
import torch

from benchmarks.clock import peak_on_gpu, seconds
from benchmarks.steps import ROWS, ratios, step_times


def test_each_row_is_timed_beside_plain_steps() -> None:
    rows = ["lcnn", "lcnn, own loop", "lcnn+gradreg, own loop"]
    table = ratios(step_times(rows, width=1, batch=2, size=8, rounds=1))
    assert list(table) == rows
    assert all(figures["ratio"] > 0 and figures["floor"] == ROWS[row].floor for row, figures in table.items())


def test_a_gpu_is_timed_by_its_own_events(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            calls.append("record")

        def synchronize(self) -> None:
            calls.append("synchronize")

        def elapsed_time(self, other: "Event") -> float:
            return 5.0

    monkeypatch.setattr(torch.cuda, "Event", Event)
    assert seconds(torch.device("cuda"), lambda: calls.append("work")) == 5e-3
    assert calls == ["record", "work", "record", "synchronize"]


def test_the_peak_on_a_gpu_is_what_exceeds_what_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"memory_allocated": 2**20, "max_memory_allocated": 4 * 2**20}.items():
        monkeypatch.setattr(torch.cuda, name, lambda _device, value=value: value)
    for name in ("synchronize", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, lambda _device: None)
    assert peak_on_gpu(torch.device("cuda"), lambda: None) == 3.0

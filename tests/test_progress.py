"""Bars fit 80 columns: step, time left and loss on one line, rates on the next."""

import io

import pytest
from rich.console import Console

from lowcurve.progress import make_bars


@pytest.mark.parametrize("width", [80, 200])
def test_a_bar_fits(width: int) -> None:
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    display = make_bars(console)
    name = "cifar100-resnet18-lcnn+gradreg+adv-s0-fec35d1c"
    task = display.add_task(name, total=78_200, note="loss 1.53", below="223 images/s  accuracy 0.43")
    display.update(task, completed=12_345)
    console.print(display.get_renderable())
    lines = [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    assert len(lines) == 2 and all(len(line) <= width for line in lines)
    assert all(part in lines[0] for part in ("12345/78200", "-:--:--", "loss 1.53", "cifar100"))
    assert lines[1] == "  223 images/s  accuracy 0.43"


def test_a_bar_without_notes_is_one_line() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    display = make_bars(console)
    display.add_task("attacking", total=3, note="")
    console.print(display.get_renderable())
    assert console.file.getvalue().count("\n") == 1  # type: ignore[attr-defined]

"""The rows of an evaluation: one process writes them, each is read once, and none goes where a link leads."""

import csv
import os
import signal
import time
from pathlib import Path

import pytest
from torch import nn

from lowcurve.attacks.evaluate import evaluate
from lowcurve.attacks.table import Evaluation
from lowcurve.data.dataset import Split
from lowcurve.errors import UserError
from lowcurve.files import lock
from tests.training.makers import in_child


def run(net: nn.Module, split: Split, folder: Path | None) -> Evaluation:
    return evaluate(net, split, ("fgsm", "pgd"), (0.2, 0.6), steps={"pgd": 3}, folder=folder, batch_size=16)


def test_a_second_evaluation_in_the_same_folder_is_refused(
    nets: dict[str, nn.Module], digits: Split, tmp_path: Path
) -> None:
    with lock(tmp_path), pytest.raises(UserError, match="another process is at work"):
        run(nets["relu"], digits, tmp_path)
    assert run(nets["relu"], digits, tmp_path).rows == run(nets["relu"], digits, None).rows


def test_rows_that_are_there_twice_count_once(nets: dict[str, nn.Module], digits: Split, tmp_path: Path) -> None:
    whole = run(nets["relu"], digits, tmp_path)
    head, *lines = (tmp_path / "samples.csv").read_text().splitlines(keepends=True)
    (tmp_path / "samples.csv").write_text(head + "".join(line * 2 for line in lines[:40]) + "".join(lines[20:30]))
    again = run(nets["relu"], digits, tmp_path)
    assert again.rows == whole.rows and again.cells == whole.cells


@pytest.mark.parametrize("name", ["samples.csv", ".lock"])
def test_a_planted_link_is_not_followed(nets: dict[str, nn.Module], digits: Split, tmp_path: Path, name: str) -> None:
    victim, folder = tmp_path / "victim", tmp_path / "attack"
    victim.write_text("")
    folder.mkdir()
    (folder / name).symlink_to(victim)
    with pytest.raises(UserError, match="links are not followed"):
        run(nets["relu"], digits, folder)
    assert victim.read_text() == ""


@pytest.mark.parametrize("line", ["garbage\n", "1,2,3,pgd,3,0.2,perhaps,1,0.1\n", "\x00\n", "1,2\n"])
def test_a_damaged_file_is_a_message(nets: dict[str, nn.Module], digits: Split, tmp_path: Path, line: str) -> None:
    run(nets["relu"], digits, tmp_path)
    with (tmp_path / "samples.csv").open("a") as file:
        file.write(line)
    with pytest.raises(UserError, match="is damaged"):
        run(nets["relu"], digits, tmp_path)
    (tmp_path / "settings.json").write_text("[")
    with pytest.raises(UserError, match="cannot read"):
        run(nets["relu"], digits, tmp_path)


def test_kill_minus_nine_costs_no_row_and_no_bit(nets: dict[str, nn.Module], digits: Split, tmp_path: Path) -> None:
    whole = run(nets["lcnn"], digits, tmp_path / "whole")
    folder = tmp_path / "killed"
    for count in (1, 20, 60):
        process = in_child(lambda: run(nets["lcnn"], digits, folder))
        while len(_lines(folder)) < count:
            time.sleep(0.002)
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
    assert run(nets["lcnn"], digits, folder).rows == whole.rows
    assert sorted(map(tuple, csv.reader(_lines(folder)))) == sorted(map(tuple, csv.reader(_lines(tmp_path / "whole"))))


def _lines(folder: Path) -> list[str]:
    return (folder / "samples.csv").read_text().splitlines() if (folder / "samples.csv").exists() else []

"""A `reproduce` that is killed without warning leaves nobody training, and goes on to the same bits."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from lowcurve.experiments.reproduce import reproduce_all
from lowcurve.experiments.request import request
from lowcurve.training.toml import parse_pairs

COMMAND = [
    *(sys.executable, "-m", "lowcurve", "reproduce", "table-geometry", "--rows", "lcnn", "--seeds", "0", "--jobs", "1"),
    *("--set", "model.width=4", "--set", "train.epochs=6", "--set", "train.checkpoint_seconds=0"),
    *("--set", "data.limit_train=64", "--set", "data.limit_test=4"),
]
PATIENCE = 300  # seconds, for machines that are busy


def until(condition):
    deadline = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def children(parent):
    """Return the processes whose parent this is, those that watch shared memory left out."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(state[1]) == parent and b"spawn_main" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def alive(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_workers_end_with_a_killed_parent_and_what_is_left_ends_with_the_same_bits(tmp_path):
    victim = subprocess.Popen([*COMMAND, "--output", tmp_path / "runs", "--results", tmp_path / "results"])
    try:
        until(lambda: any(path.read_text() for path in tmp_path.glob("runs/*/metrics.jsonl")))
        workers = children(victim.pid)
        assert workers
        assert not list(tmp_path.glob("runs/*/summary.json"))
    finally:
        victim.kill()
        victim.wait()
    until(lambda: not any(map(alive, workers)))
    (resumed,), (whole,) = made(tmp_path), made(tmp_path / "whole")
    assert resumed.rows == whole.rows
    assert whole.rows[1]["cells"]
    weights = [path.read_bytes() for path in sorted(tmp_path.rglob("model.safetensors"))]
    assert len(weights) == 2
    assert weights[0] == weights[1]


def made(folder):
    """Do the same, or what is left of it, in this process."""
    settings = [word for word in COMMAND if "=" in word]
    asked = request(
        "table-geometry",
        "digits",
        rows=("lcnn",),
        seeds=(0,),
        overrides=parse_pairs(settings),
        output=folder / "runs",
        results=folder / "results",
        executor="here",
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    failures: dict[str, str] = {}
    results = list(reproduce_all([asked], print, failures))
    torch.set_num_threads(threads)
    assert not failures
    return results

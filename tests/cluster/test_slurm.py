"""Does a real Slurm compute what this process computes? `make cluster` runs this; it takes some minutes."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from lowcurve.experiments.collect import collect
from lowcurve.experiments.executor import perform
from lowcurve.experiments.request import request
from lowcurve.training.toml import parse_pairs
from tests.cluster.daemons import cluster, free_ports, missing
from tests.training.makers import same_bits

pytestmark = [
    pytest.mark.skipif("LOWCURVE_CLUSTER" not in os.environ, reason="starts daemons and takes minutes: make cluster"),
    pytest.mark.skipif(bool(missing()), reason=missing()),
]
PATIENCE = 300  # seconds, for machines that are busy
SMALL = [
    *("model.width=4", "train.epochs=12", "train.checkpoint_seconds=0"),
    *("data.limit_train=192", "data.limit_test=16", "train.batch_size=32"),
]
SETTINGS = [word for setting in SMALL for word in ("--set", setting)]
LOWCURVE = [sys.executable, "-m", "lowcurve"]
TRAIN = ["train", "digits-resnet18-lcnn", "--resume", "auto", *SETTINGS]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with cluster(tmp_path_factory.mktemp("slurm")) as found:
        threads = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")  # jobs find out by themselves
        yield {name: value for name, value in found.items() if name not in threads}


def until(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def ask(environment: dict[str, str], *command: str) -> str:
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def in_training(runs: Path, method: str) -> Path | None:
    """Return the folder of a run that has finished an epoch and not all of them."""
    begun = [path.parent for path in runs.glob(f"*{method}*/metrics.jsonl") if path.read_text()]
    return next((run for run in begun if not (run / "summary.json").exists()), None)


def reproduce(folder: Path) -> list[str]:
    words = ["reproduce", "table-geometry", "--rows", "standard,lcnn,gradreg", "--seeds", "0", "--jobs", "2", *SETTINGS]
    paths = ["--output", str(folder / "runs"), "--results", str(folder / "results")]
    return [*LOWCURVE, *words, *paths, "--executor", "slurm", "--slurm", "cpus_per_task=1"]


def test_an_array_with_one_job_requeued_and_one_canceled_makes_the_table_of_this_process(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    with (tmp_path / "said").open("w") as said:
        first = subprocess.Popen(reproduce(tmp_path), env=environment, stdout=said, stderr=said)
    try:
        requeued = until(lambda: in_training(tmp_path / "runs", "standard"))
        (array,) = {job.partition("_")[0] for job in ask(environment, "squeue", "-h", "-r", "-o", "%i").split()}
        ask(environment, "scontrol", "requeue", f"{array}_0")
        canceled = until(lambda: in_training(tmp_path / "runs", "gradreg"))
        ask(environment, "scancel", f"{array}_2")
        until(lambda: "PENDING" in ask(environment, "squeue", "-h", "-j", f"{array}_0", "-o", "%T"))
        ask(environment, "scontrol", "update", f"job={array}_0", "StartTime=now")  # Slurm itself waits two minutes
        assert first.wait(PATIENCE) == 2  # the canceled run has failed
    finally:
        first.kill()
    _check_what_was_said((tmp_path / "said").read_text(), canceled.name, array)
    for run in (requeued, canceled):
        assert not (run / "summary.json").exists() or run == requeued
    again = subprocess.run(reproduce(tmp_path), env=environment, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    result = json.loads((tmp_path / "results/digits/table-geometry.json").read_text())
    assert result["rows"] == rows_of_this_process(tmp_path / "here")
    _check_what_jobs_did(requeued, canceled)


def _check_what_was_said(said: str, canceled: str, array: str) -> None:
    lines = " ".join(said.split())
    assert f"failed {canceled}: job {array}_2 has ended without a result" in lines
    assert "jobs 3 pending, 0 running, 0 done" in lines and "jobs 0 pending, 0 running, 3 done" in lines
    assert "sacct" not in said and "Traceback" not in said


def _check_what_jobs_did(*runs: Path) -> None:
    """They were interrupted, went on, and had one thread because they were given one core."""
    for run in runs:
        made = json.loads((run / "environment.json").read_text())
        assert made["threads"] == 1
        assert made["earlier"]
        assert len((run / "metrics.jsonl").read_text().splitlines()) == 12


def rows_of_this_process(folder: Path) -> list[dict[str, object]]:
    paths = {"output": folder / "runs", "results": folder / "results"}
    rows = ("standard", "lcnn", "gradreg")
    asked = request("table-geometry", "digits", rows=rows, seeds=(0,), overrides=parse_pairs(SMALL), **paths)
    for planned in asked.grid():
        perform(planned, asked.tasks)
    return list(json.loads(json.dumps(collect(asked).rows)))


def torchrun(folder: Path) -> list[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2"]
    port = f"--master_port={free_ports(1)[0]}"
    return [*launcher, port, "-m", "lowcurve", *TRAIN, "--output", str(folder)]


def srun(folder: Path) -> list[str]:
    return ["srun", "--ntasks=2", "--cpus-per-task=1", *LOWCURVE, *TRAIN, "--output", str(folder)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    subprocess.run(torchrun(folder), env=environment, check=True)
    return folder


def same_weights(first: Path, second: Path) -> bool:
    weights = [load_file(folder / "digits-resnet18-lcnn" / "model.safetensors") for folder in (first, second)]
    return same_bits(*weights)


def test_two_tasks_train_together(tmp_path: Path, environment: dict[str, str], undisturbed: Path) -> None:
    said = ask(environment, *srun(tmp_path))
    assert said.count("test accuracy") == 1  # one of them speaks
    made = json.loads((tmp_path / "digits-resnet18-lcnn" / "environment.json").read_text())
    assert (made["processes"], made["threads"]) == (2, 1)
    assert same_weights(tmp_path, undisturbed)


def test_tasks_with_recipes_of_their_own_are_refused(tmp_path: Path, environment: dict[str, str]) -> None:
    script = f"{' '.join(LOWCURVE)} train digits-resnet18-lcnn --set train.seed=$SLURM_PROCID --output {tmp_path}"
    command = ["srun", "--ntasks=2", "bash", "-c", script]
    failed = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert failed.returncode != 0
    assert "expected one recipe for the 2 processes that train together" in failed.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("launch", [torchrun, srun])
def test_a_lost_process_is_named_and_costs_no_bit(
    tmp_path: Path, environment: dict[str, str], undisturbed: Path, launch: Callable[[Path], list[str]]
) -> None:
    started = subprocess.Popen(launch(tmp_path), env=environment, stderr=subprocess.PIPE, text=True)
    try:
        until(lambda: (tmp_path / "digits-resnet18-lcnn" / "checkpoints" / "000000010.json").exists())
        (lost,) = (process for process in trainers(tmp_path) if rank(process) == 1)
        os.kill(lost, signal.SIGKILL)
        said = started.communicate(timeout=PATIENCE)[1]
    finally:
        started.kill()
    assert started.returncode != 0
    (line,) = (line for line in said.splitlines() if "has lost process" in line)
    assert "process 0 of 2 has lost process 1: it was killed" in line and "--resume auto" in line
    subprocess.run(launch(tmp_path), env=environment, check=True)
    assert same_weights(tmp_path, undisturbed)


def trainers(folder: Path) -> list[int]:
    """Return the processes that train in this folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if str(folder).encode() in words and rank(int(process.name)) is not None:
            found.append(int(process.name))
    return found


def rank(process: int) -> int | None:
    """Return a process's rank; launchers have none."""
    entries = Path(f"/proc/{process}/environ").read_bytes().decode().split("\0")
    variables = dict(entry.partition("=")[::2] for entry in entries)
    found = variables.get("RANK", variables.get("SLURM_PROCID"))
    return None if found is None else int(found)

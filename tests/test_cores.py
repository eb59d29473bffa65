"""Are there as many threads as cores, and does nobody else's setting change?"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lowcurve import cores
from lowcurve.training.machine import given_threads


@pytest.mark.parametrize(
    ("membership", "files", "found"),
    [
        ("0::/", {"cpu.max": "150000 100000"}, [1]),
        ("0::/a/b", {"a/cpu.max": "200000 100000", "a/b/cpu.max": "max 100000"}, [2]),
        ("0::/a/b", {"a/cpu.max": "200000 100000", "a/b/cpu.max": "50000 100000"}, [0, 2]),
        ("0::/host/path\n", {"cpu.max": "400000 100000"}, [4]),  # a container sees its own group as the root
        ("4:memory:/x\n3:cpu,cpuacct:/a", {"cpu/a/cpu.cfs_quota_us": "300000", "cpu/a/cpu.cfs_period_us": "1e5"}, []),
        ("3:cpuacct,cpu:/a", {"cpu/a/cpu.cfs_quota_us": "300000\n", "cpu/a/cpu.cfs_period_us": "100000\n"}, [3]),
        ("1:cpu:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, []),
        ("3:cpuset:/a", {"cpu/a/cpu.cfs_quota_us": "300000", "cpu/a/cpu.cfs_period_us": "100000"}, []),
        ("0::/", {}, []),
    ],
)
def test_quotas_of_control_groups(tmp_path: Path, membership: str, files: dict[str, str], found: list[int]) -> None:
    for name, text in files.items():
        (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / name).write_text(text)
    (tmp_path / "mine").write_text(membership)
    assert list(cores._quotas(tmp_path / "groups", tmp_path / "mine")) == found
    assert list(cores._quotas(tmp_path / "groups", tmp_path / "absent")) == []


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        ({}, []),
        ({"CPUS_PER_TASK": "3", "CPUS_ON_NODE": "8"}, [3]),
        ({"CPUS_ON_NODE": "8"}, [8]),
        ({"CPUS_ON_NODE": "8", "STEP_NUM_TASKS": "4", "STEP_NUM_NODES": "2"}, [4]),
        ({"CPUS_ON_NODE": "2", "STEP_NUM_TASKS": "5", "STEP_NUM_NODES": "1"}, [0]),  # one at least, in the end
        ({"CPUS_PER_TASK": "many"}, []),
    ],
)
def test_cores_of_a_slurm_task(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], found: list[int]) -> None:
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    assert list(cores._slurm()) == found
    assert cores.given_cores() == max(1, min([cores._allowed(), *cores._quotas(), *found]))


def test_threads_follow_the_cores_unless_somebody_has_said_how_many(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        monkeypatch.setenv("SLURM_CPUS_PER_TASK", "1")
        for threads, expected in ((None, 1), ("2", 2)):
            monkeypatch.delenv(cores.THREADS, raising=False)
            if threads:
                monkeypatch.setenv(cores.THREADS, threads)
            with given_threads():
                assert torch.get_num_threads() == expected
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_settings_are_made_once_and_hidden_from_other_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "_chosen_here", set())
    monkeypatch.setenv(cores.WAITING, "active")
    monkeypatch.delenv(cores.THREADS, raising=False)
    cores.settle()
    assert os.environ[cores.THREADS] == str(cores.given_cores())
    assert os.environ[cores.WAITING] == "active"
    with cores.unsettled():
        assert cores.THREADS not in os.environ
    assert os.environ[cores.THREADS] == str(cores.given_cores())
    monkeypatch.setattr(cores, "_chosen_here", set())  # as if the user had set it
    cores.settle()
    with cores.unsettled():
        assert cores.THREADS in os.environ


def test_the_command_settles_before_pytorch_is_loaded() -> None:
    """OpenMP reads its variables once: a command with one core starts with one thread, and its threads sleep."""
    code = (
        "import sys, os; import lowcurve.cli as cli\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules\n"
        "cli.app = lambda: None\n"
        "cli.main(); import torch; print(torch.get_num_threads(), os.environ['OMP_WAIT_POLICY'])"
    )
    unset = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_WAIT_POLICY")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    command = [sys.executable, "-c", code]
    found = subprocess.run(command, env={**environment, "SLURM_CPUS_PER_TASK": "1"}, capture_output=True, text=True)
    assert found.stdout.split() == ["1", "passive"], found.stderr

"""Do jobs end with results or reasons? Against stand-ins of Slurm's commands; tests/cluster has a real one."""

import math
import os
import stat
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from lowcurve import cores
from lowcurve.errors import UserError
from lowcurve.experiments import slurm
from lowcurve.experiments.executor import count_states

# Runs each task of the array that it finds in the script at once, but for those that `hold` names.
SBATCH = """
import os, re, subprocess, sys
from pathlib import Path
here, text = Path(__file__).parent, Path(sys.argv[1]).read_text()
if "no-such-partition" in text:
    sys.exit("sbatch: error: invalid partition specified: no-such-partition")
(here / "script").write_text(text)
last = re.search(r"--array=0-(\\d+)", text)
held = (here / "hold").read_text().split() if (here / "hold").exists() else []
with (here / "queue").open("a") as queue:
    for index in range(int(last[1]) + 1) if last else [None]:
        more = {} if index is None else {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": str(index)}
        if str(index) in held:
            queue.write(f"7_{index} PENDING\\n")
        else:
            environment, log = {**os.environ, "SLURM_JOB_ID": "7", **more}, (here / f"log{index}").open("w")
            subprocess.Popen(["bash", sys.argv[1]], env=environment, stdout=log, stderr=log)
            queue.write(f"7_{'N/A' if index is None else index} RUNNING\\n")
print("Submitted batch job 7")
"""
SRUN = """
import os, sys
words = sys.argv[1:]
while words[0].startswith("-"):
    words = words[2:] if words[0] in ("--output", "--error") else words[1:]
os.execvp(words[0], words)
"""
SQUEUE = """
import sys
from pathlib import Path
here = Path(__file__).parent
print((here / "queue").read_text(), end="") if (here / "queue").exists() else sys.exit("no answer")
"""


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of Slurm's commands, first on the path, and a queue that is asked often."""
    pytest.importorskip("submitit")
    folder = tmp_path / "commands"
    folder.mkdir()
    for name, code in (("sbatch", SBATCH), ("srun", SRUN), ("squeue", SQUEUE)):
        (folder / name).write_text(f"#!{sys.executable}{code}")
        (folder / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr(slurm, "ASK_EVERY", 0.05)
    monkeypatch.setattr(slurm, "GRACE", 0.3)
    return folder


def wait(jobs: Sequence[slurm.SlurmJob]) -> None:
    deadline = time.monotonic() + 60
    while not all(job.done() for job in jobs):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def submit(folder: Path, task: Callable[..., Any], values: Sequence[Any], **parameters: Any) -> list[slurm.SlurmJob]:
    with slurm.slurm_pool(2, folder, parameters) as pool:
        return list(pool(task, [(value,) for value in values]))


def test_an_array_ends_with_results_reasons_and_losses(
    commands: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (commands / "hold").write_text("2")
    monkeypatch.setattr(cores, "_chosen_here", {cores.THREADS})
    jobs = submit(tmp_path / "runs", math.sqrt, [4.0, -1.0, 9.0], partition="any", cpus_per_task=1)
    script = (commands / "script").read_text()
    assert "#SBATCH --array=0-2%2" in script and "#SBATCH --partition=any" in script
    assert os.environ[cores.THREADS]  # hidden from the jobs only
    wait(jobs[:2])
    assert count_states(jobs) == "1 pending, 0 running, 2 done"
    assert jobs[0].result() == 2.0
    with pytest.raises(UserError, match=r"^ValueError: .*\(.*7_1_0_log.err\)$"):
        jobs[1].result()
    queue = (commands / "queue").read_text()
    (commands / "queue").unlink()  # a controller that does not answer
    time.sleep(0.5)
    assert not jobs[2].done()
    (commands / "queue").write_text(queue.replace("PENDING", "RUNNING"))
    time.sleep(0.1)
    assert jobs[2].running()
    (commands / "queue").write_text("8_1 RUNNING\n")  # canceled
    wait(jobs)
    with pytest.raises(UserError, match="job 7_2 has ended without a result: it was canceled"):
        jobs[2].result()
    assert "sacct" not in capfd.readouterr().err


def test_one_run_needs_no_array(commands: Path, tmp_path: Path) -> None:
    jobs = submit(tmp_path / "runs", os.getenv, ["OMP_NUM_THREADS"])
    assert "--array" not in (commands / "script").read_text()
    wait(jobs)
    assert jobs[0].result() == os.environ["OMP_NUM_THREADS"]  # set by the user, not by lowcurve


def test_what_slurm_refuses_is_one_line(commands: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for parameters, message in (
        ({"partition": "no-such-partition"}, "invalid partition"),
        ({"partitoin": "any"}, "partitoin"),
        ({"tasks_per_node": 2}, "expected one task for each run of a table, got tasks_per_node=2"),
        ({"nodes": 2}, "got nodes=2"),
    ):
        with pytest.raises(UserError, match=message):
            submit(tmp_path / "runs", math.sqrt, [1.0, 2.0], **parameters)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="srun"):
        submit(tmp_path / "runs", math.sqrt, [1.0])


def test_a_task_that_is_out_of_time_is_submitted_again() -> None:
    pytest.importorskip("submitit")
    task = slurm.Resuming(math.sqrt)
    again = task.checkpoint(4.0)
    assert (again.function, again.args, task(4.0)) == (task, (4.0,), 2.0)

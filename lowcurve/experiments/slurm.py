"""How do jobs of a Slurm cluster compute? One array for each table, submitted by submitit and watched by `squeue`.

submitit alone asks `sacct`, which does not answer where no accounting is set up: it warns again and again, and waits
for a canceled job without end. A result file says that a job has ended; so does a queue that no longer knows it.
"""

import logging
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowcurve.cores import unsettled
from lowcurve.errors import UserError

if TYPE_CHECKING:
    import submitit

ASK_EVERY = 10.0  # seconds between two questions to the queue
GRACE = 15.0  # seconds that a result file may need to arrive from another machine
SHARED = ("timeout_min", "mem_gb", "nodes", "cpus_per_task", "gpus_per_node", "tasks_per_node", "name")


class Resuming:
    """A task that goes on where it was stopped: submitit submits it again when its time is over."""

    def __init__(self, task: Callable[..., Any]) -> None:
        self.task = task

    def __call__(self, *arguments: Any) -> Any:
        """Do it."""
        return self.task(*arguments)

    def checkpoint(self, *arguments: Any) -> Any:
        """Return what is to be done after an interruption: the same."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, *arguments)


class Queue:
    """What `squeue` says of this user's jobs; asked once for all of them, and not too often."""

    def __init__(self) -> None:
        self._states: Mapping[str, str] = {}
        self._asked = self._answered = float("-inf")
        self._last_seen: dict[str, float] = {}

    def state(self, job: str) -> str:
        """Return a job's state as Slurm names it, "" where the queue does not know it."""
        self._ask()
        return self._states.get(job, "")

    def has_lost(self, job: str) -> bool:
        """Whether the queue has answered without this job for some time."""
        self._ask()
        return self._answered - self._last_seen.setdefault(job, time.monotonic()) > GRACE

    def _ask(self) -> None:
        if time.monotonic() - self._asked < ASK_EVERY:
            return
        self._asked = time.monotonic()
        command = ["squeue", "--noheader", "--array", "--me", "--format=%F_%K %T"]  # of a job without array: 12_N/A
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        if answer.returncode == 0:  # a controller that is too busy to answer has lost nothing
            pairs = (line.split() for line in answer.stdout.splitlines())
            self._states = {job.removesuffix("_N/A"): state for job, state in pairs}
            self._answered = time.monotonic()
            self._last_seen |= dict.fromkeys(self._states, self._answered)


class SlurmJob:
    """One job: `done()`, `running()`, `result()`."""

    def __init__(self, job: "submitit.Job[Any]", queue: Queue) -> None:
        self._job, self._queue = job, queue

    def done(self) -> bool:
        """Tell whether it has ended, with a result or without."""
        return self._has_result() or self._queue.has_lost(self._job.job_id)

    def running(self) -> bool:
        """Tell whether it has a node and has not ended."""
        return self._queue.state(self._job.job_id) in ("RUNNING", "COMPLETING", "SUSPENDED") and not self.done()

    def result(self) -> Any:
        """Return what the task returned; its error is raised again, without the traceback."""
        from submitit.core.utils import FailedJobError

        paths = self._job.paths
        os.utime(paths.folder)  # a network file system then looks anew
        if not self._has_result():
            raise UserError(
                f"job {self._job.job_id} has ended without a result: it was canceled, or its node failed; "
                f"see {paths.stderr}, and run the same command again"
            )
        try:
            return self._job.result()
        except FailedJobError as error:
            lines = [line for line in str(error).splitlines() if line and not line.startswith(("-", "You can", " "))]
            raise UserError(f"{lines[-1].removeprefix('lowcurve.errors.UserError: ')} ({paths.stderr})") from None

    def _has_result(self) -> bool:
        return bool(self._job.paths.result_pickle.exists())


@contextmanager
def slurm_pool(
    jobs: int, output: Path, parameters: Mapping[str, Any]
) -> Iterator[Callable[[Callable[..., Any], Sequence[tuple[Any, ...]]], list[SlurmJob]]]:
    """Submit calls of a task as one array, at most `jobs` at a time; `parameters` go to submitit (partition, …)."""
    try:
        import submitit
        from submitit.core.utils import FailedJobError
    except ImportError:
        raise UserError("--executor slurm needs submitit; install it: pip install submitit") from None
    logging.getLogger("submitit").setLevel(logging.ERROR)
    settings = {"name": "lowcurve", "slurm_array_parallelism": jobs, "timeout_min": 24 * 60}
    _refuse_several_tasks(parameters)
    try:
        executor = submitit.AutoExecutor(folder=output / "slurm", cluster="slurm")
        executor.update_parameters(**settings | {_slurm_key(key): value for key, value in parameters.items()})
    except (RuntimeError, ValueError, TypeError, NameError) as error:
        raise UserError(f"no jobs of Slurm can be made: {error}") from None
    queue = Queue()

    def submit(task: Callable[..., Any], calls: Sequence[tuple[Any, ...]]) -> list[SlurmJob]:
        try:
            with unsettled():
                made = executor.map_array(Resuming(task), *zip(*calls, strict=True))
        except (FailedJobError, OSError) as error:
            raise UserError(f"Slurm does not take the jobs: {error}; change what --slurm says") from None
        return [SlurmJob(job, queue) for job in made]

    yield submit


def _refuse_several_tasks(parameters: Mapping[str, Any]) -> None:
    for key in ("nodes", "tasks_per_node", "ntasks_per_node", "slurm_ntasks_per_node"):
        if parameters.get(key, 1) != 1:
            raise UserError(
                f"expected one task for each run of a table, got {key}={parameters[key]}: batch statistics, and so the "
                "numbers, would depend on it; train such a run by `srun lowcurve train`"
            )


def _slurm_key(key: str) -> str:
    return key if key in SHARED or key.startswith("slurm_") else f"slurm_{key}"

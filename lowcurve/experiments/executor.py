"""Who computes? Worker processes on this machine, one thread each, or jobs of a Slurm cluster through submitit.

Both hand out objects with `done()`, `running()` and `result()`. A worker trains one run and measures it; finished
parts are found on disk and skipped, so a killed experiment goes on where it stopped.
"""

import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any, Protocol

from lowcurve.errors import UserError, unknown_name
from lowcurve.evaluation.measurement import Task
from lowcurve.experiments.grid import PlannedRun
from lowcurve.experiments.slurm import slurm_pool
from lowcurve.files import make_folder, writing
from lowcurve.training.machine import flushed_denormals, given_threads, kept_memory


class Job(Protocol):
    """What a pool returns for a submitted run."""

    def done(self) -> bool:
        """Tell whether it has ended."""

    def running(self) -> bool:
        """Tell whether it has begun and not ended."""

    def result(self) -> Any:
        """Return its value or raise its error."""


# takes a task and the arguments of each call
Submit = Callable[[Callable[..., Any], Sequence[tuple[Any, ...]]], Sequence[Job]]


def perform(planned: PlannedRun, tasks: Sequence[Task]) -> None:
    """Train the run of `planned` unless it is trained, then take the measurements that it lacks."""
    from lowcurve.evaluation.store import missing, take
    from lowcurve.evaluation.subject import find_subject
    from lowcurve.training.loop import train
    from lowcurve.training.network import own_factory

    if not planned.trained:
        train(planned.config, resume="auto")
    if lacking := missing(planned.folder, tasks):
        # the function that makes a network is the one that the user's recipe names, not the folder's
        subject = find_subject(planned.folder, data_dir=planned.config.data.dir, trust=own_factory(planned.config))
        with flushed_denormals(), kept_memory(), given_threads():
            for task in lacking:
                take(task, subject, planned.folder)


@contextmanager
def local_pool(jobs: int, output: Path) -> Iterator[Submit]:
    """Open `jobs` processes with one thread each: on small nets two runs side by side beat one on two threads.

    However this block is left early, by an error, Ctrl-C or SIGTERM, the workers save what they train and end. Where
    this process is killed without warning they end at once; training goes on from the last checkpoint.
    """
    context, log = get_context("spawn"), make_folder(output) / "workers.log"
    with writing(log):
        os.close(_open_log(log))
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_settle, initargs=(log,))
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        with _single_threaded():
            yield lambda task, calls: [pool.submit(_obedient, task, *call) for call in calls]
    except BaseException:
        for process in list(pool._processes.values()):
            process.terminate()
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
        pool.shutdown(wait=True, cancel_futures=True)


def _obedient(task: Callable[..., None], *arguments: Any) -> None:
    """Run a task; a worker that is asked to stop ends, where the pool would have it go on with the next task."""
    try:
        task(*arguments)
    except (SystemExit, KeyboardInterrupt):
        os._exit(1)


def open_pool(name: str, jobs: int, output: Path, parameters: Mapping[str, Any]) -> AbstractContextManager[Submit]:
    """Return the pool called `name`: local, slurm, or here, in this process."""
    if name == "local":
        return local_pool(jobs, output)
    if name == "slurm":
        return slurm_pool(jobs, output, parameters)
    if name == "here":
        return nullcontext(_here)
    raise unknown_name("executor", name, ("local", "slurm", "here"))


def _here(task: Callable[..., Any], calls: Sequence[tuple[Any, ...]]) -> list[Job]:
    """Run a task in this process, where functions of a notebook or a shell are known."""
    jobs: list[Job] = []
    for call in calls:
        job: Future[Any] = Future()
        try:
            job.set_result(task(*call))
        except Exception as error:
            job.set_exception(error)
        jobs.append(job)
    return jobs


def wait(
    jobs: Mapping[PlannedRun, Job], tick: Callable[[], None], finished: Callable[[PlannedRun, str | None], None]
) -> None:
    """Call `tick` twice a second and `finished(planned, error)` for each job as it ends."""
    waiting = dict(jobs)
    while waiting:
        for planned in [planned for planned, job in waiting.items() if job.done()]:
            finished(planned, _error(waiting.pop(planned)))
        tick()
        if waiting:
            time.sleep(0.5)


def count_states(jobs: Iterable[Job]) -> str:
    """Say how many jobs wait, run and have ended.

    >>> from concurrent.futures import Future
    >>> count_states([Future(), Future()])
    '2 pending, 0 running, 0 done'
    """
    states = Counter("done" if job.done() else "running" if job.running() else "pending" for job in jobs)
    return ", ".join(f"{states[state]} {state}" for state in ("pending", "running", "done"))


def _error(job: Job) -> str | None:
    try:
        job.result()
    except Exception as error:  # a failed run must not stop the others
        return str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
    return None


@contextmanager
def _single_threaded() -> Iterator[None]:
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _settle(log: Path) -> None:
    """Send a worker's own progress and warnings to a log: the parent shows one display for all; end with it."""
    import torch

    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    target = _open_log(log)
    sys.stderr.flush()
    os.dup2(target, 2)
    os.close(target)


def _open_log(path: Path) -> int:
    """Open a log to append to it; through a link or into a pipe nothing is written."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    return os.open(path, flags, 0o666)


def _end_with_parent() -> None:
    """Wait for the end of the pipe that the parent alone holds open, then end as it did: without a last word."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)

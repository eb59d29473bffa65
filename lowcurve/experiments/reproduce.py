"""How is a table reproduced? Train the runs that are missing, measure them, collect what is there, judge it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

from lowcurve.evaluation.store import missing
from lowcurve.experiments.collect import answered, collect, load_result, measure_together
from lowcurve.experiments.executor import Submit, count_states, open_pool, perform, wait
from lowcurve.experiments.grid import PlannedRun
from lowcurve.experiments.records import describe_run
from lowcurve.experiments.request import Request
from lowcurve.experiments.results import Result
from lowcurve.files import read_lines
from lowcurve.progress import bars, visible

Say = Callable[[str], None]


def reproduce_all(
    requests: Sequence[Request], say: Say, failures: dict[str, str], *, run: bool = True
) -> Iterator[Result]:
    """Run each request (or nothing, with `run=False`) and yield its result; `failures` gathers runs that failed.

    All requests share one pool of workers, which is opened when the first run is to be done.
    """
    submit: Submit | None = None
    with ExitStack() as pool:
        for asked in requests:
            if asked.experiment.together:
                result = measure_together(asked) if run else load_result(asked)
            else:
                if run and (pending := _pending(asked)):
                    if submit is None:
                        opened = open_pool(asked.executor, asked.jobs, asked.output, asked.slurm)
                        submit = pool.enter_context(opened)
                    failures |= run_grid(asked, pending, say, submit)
                result = collect(asked)
            result.save(asked.results)
            yield result


def _pending(asked: Request) -> list[PlannedRun]:
    """Return the runs that are not trained, or lack a measurement."""
    pending = [planned for planned in asked.grid() if not planned.trained or missing(planned.folder, asked.tasks)]
    return [planned for planned in pending if not (asked.skip_recorded and answered(asked, planned))]


def run_grid(asked: Request, pending: Sequence[PlannedRun], say: Say, submit: Submit) -> dict[str, str]:
    """Train and measure `pending` runs; return the errors of those that failed, by name."""
    failures: dict[str, str] = {}
    new = {planned for planned in pending if not planned.trained}
    of_all = f"of {len(asked.grid())} runs"
    say(f"{asked.name}: {len(new)} {of_all} to train" if new else f"{asked.name}: {len(pending)} {of_all} to measure")

    def finished(planned: PlannedRun, error: str | None) -> None:
        if error is not None:
            failures[planned.name] = error
            say(f"failed {planned.name}: {error}")
        elif planned in new:
            say(f"done   {describe_run(planned)}")
        else:
            say(f"done   {planned.name}: measured")
        collect(asked).save(asked.results)

    jobs = dict(zip(pending, submit(perform, [(planned, asked.tasks) for planned in pending]), strict=True))
    parts = {planned: planned.config.train.epochs + len(asked.tasks) for planned in pending}
    with bars() as display:
        task = display.add_task(asked.name, total=sum(parts.values()), note="")
        # where nobody sees the bar, a line whenever a job of the cluster begins or ends
        tell = say if asked.executor == "slurm" and not visible() else lambda line: None
        states = ""

        def tick() -> None:
            nonlocal states
            before, states = states, count_states(jobs.values())
            if states != before:
                tell(f"jobs   {states}")
            done = {planned: _parts_done(asked, planned) for planned in pending}
            running = [
                f"{planned.row.key} {n}/{parts[planned]}" for planned, n in done.items() if 0 < n < parts[planned]
            ]
            display.update(task, completed=sum(done.values()), note=", ".join([states, *running[: asked.jobs]]))

        wait(jobs, tick, finished)
    return failures


def _parts_done(asked: Request, planned: PlannedRun) -> int:
    """Count finished epochs and measurements of a run."""
    if planned.trained:
        return planned.config.train.epochs + len(asked.tasks) - len(missing(planned.folder, asked.tasks))
    try:
        return len(read_lines(planned.folder / "metrics.jsonl"))
    except OSError:
        return 0

"""How is a table reproduced? Train the runs that are missing, measure them, collect what is there, judge it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lowcurve.data import check_name
from lowcurve.environment import environment
from lowcurve.errors import UserError, unknown_name
from lowcurve.evaluation.measurement import Task
from lowcurve.evaluation.names import data_name
from lowcurve.evaluation.schema import ResultFile, check, read_json
from lowcurve.evaluation.store import find, missing, taken
from lowcurve.experiments import EXPERIMENTS
from lowcurve.experiments.executor import Submit, open_pool, perform, wait
from lowcurve.experiments.experiment import Experiment, Measured
from lowcurve.experiments.grid import PlannedRun, planned_runs
from lowcurve.experiments.presets import PRESETS, Preset
from lowcurve.experiments.records import describe, on_record, read_record, update_record
from lowcurve.experiments.results import Result, tabulate
from lowcurve.files import read_bytes
from lowcurve.progress import bars

Say = Callable[[str], None]


@dataclass(frozen=True)
class Request:
    """What to reproduce and how: the arguments of `lowcurve reproduce`."""

    experiment: Experiment
    preset: Preset
    output: Path = Path("runs")
    results: Path = Path("results")
    data: str | None = None
    data_dir: Path | None = None
    rows: Sequence[str] = ()
    seeds: Sequence[int] = ()
    overrides: Mapping[str, Any] = field(default_factory=dict)
    executor: str = "local"
    jobs: int = 2
    slurm: Mapping[str, Any] = field(default_factory=dict)
    measure: bool = True
    skip_recorded: bool = False  # leave out runs whose folder is gone but whose numbers are on record

    @property
    def name(self) -> str:
        """The result's name: the experiment's, and the data set's where another was asked for."""
        return f"{self.experiment.name}-{data_name(self.data)}" if self.data else self.experiment.name

    @property
    def records(self) -> Path:
        """Where tables of this preset and the records of their runs are kept."""
        return self.results / self.preset.name

    @property
    def answers(self) -> list[Task]:
        """The measurements that the table is made of."""
        return [measurement.task(self.preset.samples) for measurement in self.experiment.measurements]

    @property
    def tasks(self) -> list[Task]:
        """What is to be measured of each run."""
        return self.answers if self.measure else []

    @property
    def command(self) -> str:
        """The command that makes the whole table again."""
        if self.experiment.command:
            return self.experiment.command
        words = ["lowcurve reproduce", self.experiment.name, "--preset", self.preset.name]
        words += ["--data", self.data] if self.data else []
        words += ["--seeds", ",".join(map(str, self.all_seeds))] if {*self.seeds} - {*self.own_seeds} else []
        words += [f"--set {key}={value}" for key, value in self.overrides.items()]
        return " ".join(words)

    @property
    def own_seeds(self) -> tuple[int, ...]:
        """The seeds of the table where no others are asked for."""
        return self.experiment.seeds or self.preset.seeds

    @property
    def all_seeds(self) -> list[int]:
        """Those seeds and the ones asked for."""
        return sorted({*self.own_seeds, *self.seeds})

    def grid(self, *, whole: bool = False) -> list[PlannedRun]:
        """Return the runs asked for, or all of the experiment's."""
        return planned_runs(
            self.experiment,
            self.preset,
            self.output,
            data=self.data,
            data_dir=self.data_dir,
            rows=() if whole else self.rows,
            seeds=self.all_seeds if whole else self.seeds,
            overrides=self.overrides,
        )


def request(name: str, preset: str, **options: Any) -> Request:
    """Look up an experiment and a preset by name; what is unknown or does not fit is refused before anything runs."""
    if name not in EXPERIMENTS:
        raise unknown_name("experiment", name, [*EXPERIMENTS, "all"])
    if preset not in PRESETS:
        raise unknown_name("preset", preset, PRESETS)
    asked = Request(replace(EXPERIMENTS[name], name=name), PRESETS[preset], **options)
    if asked.data is not None:
        check_name(asked.data)
    if asked.slurm and asked.executor != "slurm":
        raise UserError(
            f"expected --slurm beside --executor slurm, got --executor {asked.executor}; leave one out or change it"
        )
    known = [row.key for row in asked.experiment.rows]
    for row in asked.rows:
        if row not in known:
            raise unknown_name("row", row, known)
    return asked


def request_all(preset: str, **options: Any) -> list[Request]:
    """Return a request for every experiment that has any of the rows asked for.

    Of figures that a preset's data make the same, only the first is returned.
    """
    chosen: dict[Any, Request] = {}
    rows = options.pop("rows", ())
    for name, experiment in EXPERIMENTS.items():
        known = tuple(row.key for row in experiment.rows if row.key in rows)
        if rows and not known:
            continue
        asked = request(name, preset, rows=known, **options)
        setting = asked.preset.setting(experiment.data, experiment.model)
        chosen.setdefault((setting, experiment.measurements, tuple(row.key for row in experiment.rows)), asked)
    return list(chosen.values())


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
    return [planned for planned in pending if not (asked.skip_recorded and _answered(asked, planned))]


def _answered(asked: Request, planned: PlannedRun) -> bool:
    """Whether all that this experiment measures of a run is on record, pictures included."""
    known = _known(asked, planned)
    return all(task.name in known and not known[task.name].get("left_out") for task in asked.answers)


def run_grid(asked: Request, pending: Sequence[PlannedRun], say: Say, submit: Submit) -> dict[str, str]:
    """Train and measure `pending` runs; return the errors of those that failed, by name."""
    failures: dict[str, str] = {}
    say(f"{asked.name}: {len(pending)} of {len(asked.grid())} runs to do")

    def finished(planned: PlannedRun, error: str | None) -> None:
        if error is not None:
            failures[planned.name] = error
        say(f"failed {planned.name}: {error}" if error else f"done   {describe(planned)}")
        collect(asked).save(asked.results)

    jobs = {planned: submit(perform, planned, asked.tasks) for planned in pending}
    parts = {planned: planned.config.train.epochs + len(asked.tasks) for planned in pending}
    with bars() as display:
        task = display.add_task(asked.name, total=sum(parts.values()), note="")

        def tick() -> None:
            done = {planned: _parts_done(asked, planned) for planned in pending}
            running = [
                f"{planned.row.key} {n}/{parts[planned]}" for planned, n in done.items() if 0 < n < parts[planned]
            ]
            display.update(task, completed=sum(done.values()), note=", ".join(running[: asked.jobs]))

        wait(jobs, tick, finished)
    return failures


def _parts_done(asked: Request, planned: PlannedRun) -> int:
    """Count finished epochs and measurements of a run."""
    if planned.trained:
        return planned.config.train.epochs + len(asked.tasks) - len(missing(planned.folder, asked.tasks))
    try:
        return read_bytes(planned.folder / "metrics.jsonl").count(b"\n")
    except OSError:
        return 0


def measure_together(asked: Request) -> Result:
    """Measure all runs at once, as the experiment does it, in this process."""
    assert asked.experiment.together is not None
    setting, measured = asked.experiment.together(asked.grid(), asked.preset)
    return assemble(asked, measured, {}, setting)


def load_result(asked: Request) -> Result:
    """Read the result of an earlier call; where there is none it is empty."""
    path = asked.records / f"{asked.name}.json"
    return Result(**check(ResultFile, read_json(path), path)) if path.exists() else assemble(asked, {}, {}, "")


def collect(asked: Request) -> Result:
    """Put together the result from every run of the experiment that is there or on record, asked for or not."""
    measured: dict[str, dict[int, dict[str, Any]]] = {}
    runs: dict[str, list[str]] = {}
    setting = ""
    for planned in asked.grid(whole=True):
        known = _known(asked, planned)
        if not known:
            continue
        record = (
            update_record(asked.records, planned, known) if planned.trained else read_record(asked.records, planned)
        )
        values = {key: value for found in known.values() for key, value in found["values"].items()}
        measured.setdefault(planned.row.key, {})[planned.seed] = values
        runs.setdefault(planned.row.key, []).append(planned.name)
        setting = record["setting"]
    try:
        return _with_former_pictures(asked, assemble(asked, measured, runs, setting))
    except (TypeError, KeyError, ZeroDivisionError) as error:
        raise UserError(
            f"a measurement of {asked.name} under {asked.output} or {asked.records} holds something else than its "
            f"numbers ({type(error).__name__}: {error}); delete that run's `measurements.jsonl` or record"
        ) from error


def _known(asked: Request, planned: PlannedRun) -> dict[str, dict[str, Any]]:
    """Return what is known of a run for this experiment: measured beside the run, or else on record."""
    known = on_record(read_record(asked.records, planned)) + (taken(planned.folder) if planned.trained else [])
    return {task.name: one for task in asked.answers if (one := find(known, task)) is not None}


def _with_former_pictures(asked: Request, result: Result) -> Result:
    """Keep the pictures of the table as it was, where the same runs made it and records, which have none, stand in."""
    former = load_result(asked)
    same = [row["runs"] for row in former.rows] == [row["runs"] for row in result.rows]
    lost = former.extra and not result.extra
    return replace(result, extra=former.extra, curves=former.curves) if same and lost else result


def assemble(asked: Request, measured: Measured, runs: Mapping[str, list[str]], setting: str) -> Result:
    """Tabulate what was measured, with what a reader needs to make it again."""
    experiment = asked.experiment
    measured = {
        row: {seed: {**values, **experiment.derive(values)} for seed, values in seeds.items()}
        for row, seeds in measured.items()
    }
    result = Result(
        experiment=asked.name,
        title=experiment.title,
        source=experiment.source,
        preset=asked.preset.name,
        setting=setting,
        command=asked.command,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        environment=environment(),
        notes=list(experiment.notes),
        **tabulate(experiment, measured, runs),
    )
    more = experiment.extend(measured)
    return replace(result, curves=[*more.get("curves", []), *result.curves], extra=dict(more.get("extra", {})))

"""What is to be reproduced, and how? An experiment, a preset, and what the user wants otherwise."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lowcurve.data import check_name
from lowcurve.errors import UserError, unknown_name
from lowcurve.evaluation.measurement import Task
from lowcurve.evaluation.names import data_name
from lowcurve.experiments import EXPERIMENTS
from lowcurve.experiments.experiment import Experiment
from lowcurve.experiments.grid import PlannedRun, planned_runs
from lowcurve.experiments.presets import PRESETS, Preset


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
    """Return a request for every experiment that has any of the rows asked for, but those that stand apart.

    Of figures that a preset's data make the same, only the first is returned.
    """
    chosen: dict[Any, Request] = {}
    rows = options.pop("rows", ())
    for name, experiment in EXPERIMENTS.items():
        known = tuple(row.key for row in experiment.rows if row.key in rows)
        if experiment.apart or (rows and not known):
            continue
        asked = request(name, preset, rows=known, **options)
        setting = asked.preset.setting(experiment.data, experiment.model)
        chosen.setdefault((setting, experiment.measurements, tuple(row.key for row in experiment.rows)), asked)
    return list(chosen.values())

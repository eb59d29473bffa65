"""What is known of an experiment? A table of every run that is there or on record, judged."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lowcurve.errors import UserError
from lowcurve.evaluation.checked import check, read_json
from lowcurve.evaluation.measurement import PER_SAMPLE
from lowcurve.evaluation.schema import ResultFile
from lowcurve.evaluation.store import find_taken, taken
from lowcurve.experiments.experiment import Measured
from lowcurve.experiments.grid import PlannedRun
from lowcurve.experiments.records import on_record, read_record, update_record
from lowcurve.experiments.request import Request
from lowcurve.experiments.results import Result, tabulate


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
        found = known(asked, planned)
        if not found:
            continue
        record = (
            update_record(asked.records, planned, found) if planned.trained else read_record(asked.records, planned)
        )
        measured.setdefault(planned.row.key, {})[planned.seed] = _joined(found)
        runs.setdefault(planned.row.key, []).append(planned.name)
        setting = record["setting"]
    try:
        return _with_former_pictures(asked, assemble(asked, measured, runs, setting))
    except (TypeError, KeyError, ZeroDivisionError) as error:
        raise UserError(
            f"a measurement of {asked.name} under {asked.output} or {asked.records} holds something else than its "
            f"numbers ({type(error).__name__}: {error}); delete that run's `measurements.jsonl` or record"
        ) from error


def _joined(found: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return all values of several measurements, and whose samples each rests on."""
    values = {key: value for one in found.values() for key, value in one["values"].items()}
    kept = {key: (name, text) for name, one in found.items() for key, text in one.get(PER_SAMPLE, {}).items()}
    return {**values, PER_SAMPLE: kept}


def known(asked: Request, planned: PlannedRun) -> dict[str, dict[str, Any]]:
    """Return what is known of a run for this experiment: measured beside the run, or else on record."""
    measurements = on_record(read_record(asked.records, planned)) + (taken(planned.folder) if planned.trained else [])
    return {task.name: one for task in asked.answers if (one := find_taken(measurements, task)) is not None}


def answered(asked: Request, planned: PlannedRun) -> bool:
    """Whether all that this experiment measures of a run is on record, pictures included."""
    found = known(asked, planned)
    return all(task.name in found and not found[task.name].get("left_out") for task in asked.answers)


def _with_former_pictures(asked: Request, result: Result) -> Result:
    """Keep the pictures of the table as it was, where the same runs made it and records, which have none, stand in."""
    former = load_result(asked)
    same = [row["runs"] for row in former.rows] == [row["runs"] for row in result.rows]
    lost = former.extra and not result.extra
    return replace(result, extra=former.extra, curves=former.curves) if same and lost else result


def assemble(asked: Request, measured: Measured, runs: Mapping[str, list[str]], setting: str) -> Result:
    """Tabulate what was measured and derived, with more curves and pictures."""
    experiment = asked.experiment
    measured = {
        row: {seed: {**values, **experiment.derive(values)} for seed, values in seeds.items()}
        for row, seeds in measured.items()
    }
    chosen = (asked.preset.chosen,) if experiment.told and asked.preset.chosen else ()
    named = replace(experiment, name=asked.name, notes=(*experiment.notes, *chosen))
    content = tabulate(named, measured, runs, preset=asked.preset.name, setting=setting, command=asked.command)
    result, more = Result(**content), experiment.extend(measured)
    return replace(result, curves=[*more.get("curves", []), *result.curves], extra=dict(more.get("extra", {})))

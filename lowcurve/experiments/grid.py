"""Which runs does an experiment need? One per row and seed, in a folder named by the hash of its training settings.

Two tables that need the same run find the same folder, so it is trained once. The hash covers what changes the
trained weights and nothing else: where data or results lie, the device and how often to save do not count, and
neither do settings at their default, so that a new option with an old meaning leaves finished runs valid.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowcurve.evaluation.names import data_name
from lowcurve.experiments.experiment import Experiment, Row
from lowcurve.experiments.presets import Preset

if TYPE_CHECKING:
    from lowcurve.training.config import Config


@dataclass(frozen=True, eq=False)
class PlannedRun:
    """One run of an experiment: its row, its seed, its configuration."""

    row: Row
    seed: int
    config: "Config"

    @property
    def name(self) -> str:
        """The run's name."""
        return self.config.run_name

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return self.config.folder

    @property
    def trained(self) -> bool:
        """Whether training has finished: the summary is written last."""
        return (self.folder / "summary.json").exists()


def planned_runs(
    experiment: Experiment,
    preset: Preset,
    output: Path,
    *,
    data: str | None = None,
    data_dir: Path | None = None,
    rows: Sequence[str] = (),
    seeds: Sequence[int] = (),
    overrides: Mapping[str, Any] | None = None,
) -> list[PlannedRun]:
    """Return the runs of `experiment`, seed by seed, so that a first whole table comes early.

    `data` takes the place of the preset's data set; `rows` and `seeds` choose from the experiment's; `overrides`
    (dotted key -> value) change every run.
    """
    chosen = [row for row in experiment.rows if not rows or row.key in rows]
    swapped, model = preset.setting(experiment.data, experiment.model)
    return [
        PlannedRun(row, seed, _config(row, seed, preset, (data or swapped, model), output, data_dir, overrides or {}))
        for seed in (seeds or experiment.seeds or preset.seeds)
        for row in chosen
    ]


def _config(
    row: Row,
    seed: int,
    preset: Preset,
    setting: tuple[str, str],
    output: Path,
    data_dir: Path | None,
    overrides: Mapping[str, Any],
) -> "Config":
    from lowcurve.methods import find_method
    from lowcurve.training.config import parse_config

    data, model = setting
    method = find_method(row.method)
    flat: dict[str, Any] = dict(preset.training)
    for term in method.terms:
        flat |= {f"method.{key}": value for key, value in preset.coefficients.get(term, {}).items()}
    flat |= {**preset.by_data.get(data, {}), **preset.by_setting.get(setting, {})}
    for own in method.coefficients:  # a method's own coefficient is part of what the method is
        flat.pop(f"method.{own}", None)
    flat |= {**row.overrides, **overrides}
    flat |= {"data.name": data, "model.name": model, "method.name": row.method, "train.seed": seed}
    tree: dict[str, Any] = {"output": output}
    for key, value in flat.items():
        section, name = key.split(".")
        tree.setdefault(section, {})[name] = value
    if data_dir is not None:
        tree["data"]["dir"] = data_dir
    config = parse_config(tree, f"row {row.key!r} of the experiment")
    return config.model_copy(update={"name": f"{data_name(data)}-{model}-{row.method}-s{seed}-{fingerprint(config)}"})


def fingerprint(config: "Config") -> str:
    """Return eight hex digits of the hash of every setting that changes the trained weights."""
    from lowcurve.training.start import MAY_DIFFER

    tree = config.model_dump(mode="json", exclude_defaults=True, by_alias=True)
    flat = {
        f"{section}.{key}": value
        for section, part in tree.items()
        if isinstance(part, dict)
        for key, value in part.items()
    }
    content = {key: value for key, value in flat.items() if key not in MAY_DIFFER}
    if content.get("model.last_layer") == "unit":  # as it was before there was a choice
        del content["model.last_layer"]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]

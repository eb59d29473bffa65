"""What is kept of a run beside a table: its recipe, versions, epochs, β and γ by layer, and measurements.

`DIR/recipes/RUN.toml` trains the run again (`lowcurve train DIR/recipes/RUN.toml`); `DIR/runs/RUN.json` is the
record that the report shows, and that stands in for the run where its folder is gone. Neither holds weights or paths
of this machine.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lowcurve.errors import UserError
from lowcurve.evaluation.checked import check, read_json
from lowcurve.evaluation.schema import Record, Taken
from lowcurve.experiments.grid import PlannedRun
from lowcurve.files import make_folder, own_folder, write_atomic, write_json
from lowcurve.training.config import Config, ModelConfig, dump_config
from lowcurve.training.runs import Run

EPOCH_KEYS = ("epoch", "loss", "train_accuracy", "test_accuracy", "images_per_second")
MODEL_TITLES = {
    "resnet18": "ResNet-18",
    "resnet34": "ResNet-34",
    "vgg11": "VGG-11",
    "mlp": "MLP",
    "convnet": "certifiable convnet",
    "vit": "ViT",
}


def describe_run(planned: PlannedRun) -> str:
    """Say in one line how a run went."""
    summary = Run(planned.folder).summary
    return f"{planned.name}: accuracy {100 * summary['accuracy']:.2f} %, trained in {summary['seconds']:.0f} s"


def setting(run: Run) -> str:
    """Say what a run was trained on, and how far."""
    config = run.config
    try:
        title = run.environment["data"]["title"]
    except (KeyError, TypeError):
        raise UserError(f"{run.folder}/environment.json does not name the data; train the run again") from None
    epochs = config.train.epochs
    return f"{title}, {_network(config.model)}, {epochs} epoch{'s' if epochs > 1 else ''}"


def _network(model: ModelConfig) -> str:
    """Say which network was trained; of what it was trained on from, only names: folders are this machine's.

    >>> _network(ModelConfig.model_validate({"from": "timm:resnet18@/home/me/cats.safetensors"}))
    'trained on from timm:resnet18@cats.safetensors'
    """
    if model.source is None:
        return f"{MODEL_TITLES.get(model.name, model.name)} of width {model.width}"
    return "trained on from " + re.sub(r"[^:@]*/", "", model.source.rstrip("/"))


def new_record(name: str, run: Run, recipe: str, command: str) -> dict[str, Any]:
    """Return what is told of a run of which nothing is measured yet."""
    epochs = run.metrics
    last = epochs[-1] if epochs else {}
    return {
        "name": name,
        "setting": setting(run),
        "method": run.config.method.name,
        "seed": run.config.train.seed,
        "command": command,
        "recipe": recipe,
        "weights_sha256": run.weights_sha256,
        "environment": {key: value for key, value in run.environment.items() if key != "command"},
        "epochs": [{key: row.get(key) for key in EPOCH_KEYS} for row in epochs],
        "beta": last.get("beta", {}),
        "gamma": last.get("gamma", {}),
        "measurements": {},
    }


def update_record(folder: Path, planned: PlannedRun, measurements: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Add measurements to the record of a run below `folder`, which is begun if need be, and return it."""
    former = read_record(folder, planned)
    known = {**former.get("measurements", {}), **{name: _brief(taken) for name, taken in measurements.items()}}
    run = Run(planned.folder)
    if former and former["measurements"] == known and former.get("weights_sha256") == run.weights_sha256:
        return former
    recipe = dump_config(portable(run.config))
    path = own_folder(make_folder(folder), "recipes") / f"{planned.name}.toml"
    write_atomic(path, recipe)
    # of weights that were kept alone the epochs are on record only
    begun = former or new_record(planned.name, run, recipe, f"lowcurve train {_portable(path).as_posix()}")
    record = {**begun, "weights_sha256": run.weights_sha256, "measurements": known}
    write_json(_path(folder, planned.name), record)
    return record


def read_record(folder: Path, planned: PlannedRun) -> dict[str, Any]:
    """Return the record of a run below `folder`, empty where there is none or the run was trained anew since then."""
    path = _path(folder, planned.name)
    if not path.exists():
        return {}
    record = check(Record, read_json(path), path)
    anew = planned.trained and record["environment"].get("started") != Run(planned.folder).environment["started"]
    return {} if anew else record


def on_record(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the measurements of a record; pictures are left out of them."""
    return [{"name": name, **taken} for name, taken in record.get("measurements", {}).items()]


def portable(config: Config) -> Config:
    """Return the recipe without paths of this machine: data comes from $LOWCURVE_DATA, results go to runs/."""
    data = config.data.model_copy(update={"dir": None})
    return config.model_copy(update={"data": data, "output": Path("runs")})


def _portable(recipe: Path) -> Path:
    """Leave out of an absolute path where RESULTS/PRESET/recipes/RUN.toml lies on this machine."""
    return Path(*recipe.relative_to(recipe.anchor).parts[-4:]) if recipe.is_absolute() else recipe


def _brief(record: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out pictures and say which: tables keep those that they show."""
    values = record["values"]
    pictures = [
        key for key, value in values.items() if isinstance(value, list) and value and isinstance(value[0], list)
    ]
    brief = {key: record[key] for key in Taken.model_fields if key in record}
    brief["values"] = {key: value for key, value in values.items() if key not in pictures}
    return brief | ({"left_out": pictures} if pictures else {})


def _path(folder: Path, name: str) -> Path:
    return folder / "runs" / f"{name}.json"

"""What is kept of a run beside a table: its recipe, versions, epochs, β and γ by layer, and measurements.

`DIR/recipes/RUN.toml` trains the run again (`lowcurve train DIR/recipes/RUN.toml`); `DIR/runs/RUN.json` is the
record that the report shows. Neither holds weights or paths of this machine.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lowcurve.experiments.grid import Cell
from lowcurve.files import write_atomic, write_json
from lowcurve.training.config import Config, dump_config
from lowcurve.training.runs import Run

EPOCH_KEYS = ("epoch", "loss", "train_accuracy", "test_accuracy", "images_per_second")
MODEL_TITLES = {
    "resnet18": "ResNet-18",
    "resnet34": "ResNet-34",
    "vgg11": "VGG-11",
    "mlp": "MLP",
    "convnet": "certifiable convnet",
}


def describe(cell: Cell) -> str:
    """Say in one line how a run went."""
    summary = Run(cell.folder).summary
    return f"{cell.name}: accuracy {100 * summary['accuracy']:.2f} %, trained in {summary['seconds']:.0f} s"


def setting(run: Run) -> str:
    """Say what a run was trained on, and how far."""
    config, data = run.config, run.environment["data"]
    model = MODEL_TITLES.get(config.model.name, config.model.name)
    return f"{data['title']}, {model} of width {config.model.width}, {config.train.epochs} epochs"


def write_record(folder: Path, cell: Cell, measurements: Mapping[str, Mapping[str, Any]]) -> str:
    """Write the recipe and the record of a run below `folder`; return its setting in words."""
    run = Run(cell.folder)
    recipe = dump_config(portable(run.config))
    path = folder / "recipes" / f"{cell.name}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, recipe)
    epochs = run.metrics
    last = epochs[-1] if epochs else {}
    where = folder / "runs" / f"{cell.name}.json"
    record = {
        "name": cell.name,
        "setting": setting(run),
        "method": cell.config.method.name,
        "seed": cell.seed,
        "command": f"lowcurve train {path.as_posix()}",
        "recipe": recipe,
        "environment": {key: value for key, value in run.environment.items() if key != "command"},
        "epochs": [{key: row.get(key) for key in EPOCH_KEYS} for row in epochs],
        "beta": last.get("beta", {}),
        "gamma": last.get("gamma", {}),
        "measurements": {**_former(where), **{name: _brief(record) for name, record in measurements.items()}},
    }
    write_json(where, record)
    return record["setting"]


def portable(config: Config) -> Config:
    """Return the recipe without paths of this machine: data comes from $LOWCURVE_DATA, results go to runs/."""
    data = config.data.model_copy(update={"dir": None})
    return config.model_copy(update={"data": data, "output": Path("runs")})


def _brief(record: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out pictures: tables keep those that they show."""
    values = {
        key: value
        for key, value in record["values"].items()
        if not (isinstance(value, list) and value and isinstance(value[0], list))
    }
    return {**record, "values": values}


def _former(path: Path) -> dict[str, Any]:
    """Return the measurements that other tables have put into a run's record."""
    import json

    try:
        found = json.loads(path.read_text()).get("measurements", {})
    except (OSError, json.JSONDecodeError):
        return {}
    return dict(found)

"""Where are the final weights of a table's runs? Copied beside the results, with what is needed to trust and use them.

`DIR/weights/RUN/` is the run's folder without its history: recipe, weights, checksum, versions. `lowcurve measure`,
`attack`, `certify` and `lc.load` take it as they take a run. `DIR/weights/manifest.json` lists them all.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lowcurve.data import Dataset
from lowcurve.digest import digest
from lowcurve.errors import UserError
from lowcurve.evaluation.checked import Count, Name, Part, Text, check, read_json
from lowcurve.experiments.grid import PlannedRun
from lowcurve.experiments.records import portable, setting
from lowcurve.files import make_folder, own_folder, read_bytes, write_atomic, write_json
from lowcurve.training.config import dump_config
from lowcurve.training.runs import Run

FOLDER, FILE = "weights", "model.safetensors"


class Kept(Part):
    """What is known of the weights of one run, and by a digest of the samples that it was trained and tested on."""

    setting: Text
    method: Text
    seed: int
    train_samples: Text
    test_samples: Text
    sha256: Text
    bytes: Count
    accuracy: float


class Manifest(Part):
    """`DIR/weights/manifest.json`."""

    runs: dict[Name, Kept]


def keep_weights(results: Path, runs: Iterable[PlannedRun]) -> dict[str, Any]:
    """Copy the weights of those runs that are trained to `results`/weights; return the whole manifest."""
    folder = own_folder(make_folder(results), FOLDER)
    known = read_manifest(results)
    samples: dict[str, dict[str, str]] = {}
    for planned in runs:
        if planned.trained:
            data = planned.config.data
            if (key := data.model_dump_json()) not in samples:
                samples[key] = _digests(data.load())
            known[planned.name] = _keep(Run(planned.folder), own_folder(folder, planned.name)) | samples[key]
    write_json(folder / "manifest.json", {"runs": dict(sorted(known.items()))})
    return known


def read_manifest(results: Path) -> dict[str, Any]:
    """Return what is kept below `results`, by the names of the runs."""
    path = results / FOLDER / "manifest.json"
    return dict(check(Manifest, read_json(path), path)["runs"]) if path.is_file() else {}


def _digests(dataset: Dataset) -> dict[str, str]:
    splits = {"train_samples": dataset.train, "test_samples": dataset.test}
    return {name: digest(split.images, split.labels) for name, split in splits.items()}


def _keep(run: Run, folder: Path) -> dict[str, Any]:
    data, summary = read_bytes(run.folder / FILE), run.summary
    if hashlib.sha256(data).hexdigest() != summary.get("weights_sha256"):
        raise UserError(f"{run.folder / FILE} is not what its run has saved; train it again")
    write_atomic(folder / FILE, data)
    write_atomic(folder / "config.toml", dump_config(portable(run.config)))
    environment = {key: value for key, value in run.environment.items() if key != "command"}
    write_json(folder / "environment.json", environment)
    write_json(folder / "summary.json", summary)  # last: it makes the folder a finished run
    config = run.config
    return {
        "setting": setting(run),
        "method": config.method.name,
        "seed": config.train.seed,
        "sha256": summary["weights_sha256"],
        "bytes": len(data),
        "accuracy": summary["accuracy"],
    }

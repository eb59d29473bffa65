"""Where are the final weights of a table's runs? Copied beside the results, with what is needed to trust and use them.

`DIR/weights/RUN/` is the run's folder without its history: recipe, weights, checksum, versions. `lowcurve measure`,
`attack`, `certify` and `lc.load` take it as they take a run. `DIR/weights/manifest.json` lists them all. Another table
of the same runs can be made of them without training.
"""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lowcurve.digest import sample_digests
from lowcurve.errors import UserError
from lowcurve.evaluation.checked import Count, Name, Part, Text, check, read_json
from lowcurve.experiments.grid import PlannedRun, fingerprint
from lowcurve.experiments.records import portable, setting
from lowcurve.files import lock, make_folder, own_folder, read_bytes, write_atomic, write_json
from lowcurve.training.config import Config, dump_config
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
    samples = _Samples()
    for planned in runs:
        if planned.trained:
            run = Run(planned.folder)
            known[planned.name] = _copy(run, own_folder(folder, planned.name)) | samples.seen(run)
    write_json(folder / "manifest.json", {"runs": dict(sorted(known.items()))})
    return known


def reuse_weights(results: Path, runs: Iterable[PlannedRun]) -> list[str]:
    """Put the weights kept below `results` where their runs would be trained, if those are not; return their names.

    Only weights of the same recipe, trained and tested on the same samples as are here, can stand for a training.
    """
    known = read_manifest(results)
    samples = _Samples()
    reused = [planned for planned in runs if planned.name in known and not planned.trained]
    for planned in reused:
        kept = Run(results / FOLDER / planned.name)
        _check_same(planned, kept, known[planned.name], samples.digests(planned.config))
        with lock(make_folder(planned.folder)):
            _copy(kept, planned.folder)
    return [planned.name for planned in reused]


def read_manifest(results: Path) -> dict[str, Any]:
    """Return what is kept below `results`, by the names of the runs."""
    path = results / FOLDER / "manifest.json"
    return dict(check(Manifest, read_json(path), path)["runs"]) if path.is_file() else {}


def _check_same(planned: PlannedRun, kept: Run, known: Mapping[str, Any], samples: Mapping[str, str]) -> None:
    same_recipe = fingerprint(kept.config) == fingerprint(planned.config)
    if not same_recipe or kept.weights_sha256 != known["sha256"]:
        raise UserError(f"{kept.folder} holds another run than the manifest says; train without reusing weights")
    for which, here in samples.items():
        if known[which] != here:
            raise UserError(
                f"expected the {which.replace('_', ' ')} of {kept.folder} ({known[which]}), got others ({here}); "
                "give --data-dir the same data, or train on yours without reusing weights"
            )


class _Samples:
    """Digests of the samples that runs are trained and tested on, each loaded once."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], dict[str, str]] = {}

    def digests(self, config: Config) -> dict[str, str]:
        """Return those of the samples that are here."""
        key = config.data.model_dump_json(), config.train.seed if config.data.wrong_labels else 0
        if key not in self._known:
            self._known[key] = sample_digests(config.samples())
        return self._known[key]

    def seen(self, run: Run) -> dict[str, str]:
        """Return those that a run was trained with; an older one does not tell, and the samples here stand in."""
        data = run.environment.get("data", {})
        told = {name: data[name] for name in ("train_samples", "test_samples") if name in data}
        return told or self.digests(run.config)


def _copy(run: Run, folder: Path) -> dict[str, Any]:
    """Copy a finished run without its history; return what the manifest tells of it."""
    data, summary = read_bytes(run.folder / FILE), run.summary
    if hashlib.sha256(data).hexdigest() != run.weights_sha256:
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
        "sha256": run.weights_sha256,
        "bytes": len(data),
        "accuracy": summary["accuracy"],
    }

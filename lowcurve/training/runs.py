"""What is a run? A folder with its recipe, its figures, its weights and what it was made with."""

import copy
import hashlib
import json
import os
import platform
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

import lowcurve
from lowcurve import checks
from lowcurve.data import Dataset
from lowcurve.digest import sample_digests
from lowcurve.environment import git_revision, processor
from lowcurve.errors import UserError
from lowcurve.factory import Factory, check_factory
from lowcurve.files import read_bytes, write_atomic
from lowcurve.training.checkpoint import load_weights
from lowcurve.training.config import Config, read_config
from lowcurve.training.log import read_metrics
from lowcurve.training.network import make_network
from lowcurve.training.saving import is_saved, load_saved


@dataclass(frozen=True)
class Run:
    """A run's folder; everything is read from it when asked for.

    `factory` is what the caller of `train` named for the network where it was not made here.
    """

    folder: Path
    factory: Factory | None = field(default=None, compare=False)

    @property
    def config(self) -> Config:
        """The recipe, resolved."""
        return load_config(self.folder)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """One row per epoch."""
        return read_metrics(self.folder)

    @property
    def finished(self) -> bool:
        """Whether training came to its end."""
        return (self.folder / "summary.json").is_file()

    @property
    def summary(self) -> dict[str, Any]:
        """Final accuracy, loss terms, time and size."""
        return _read_json(self.folder / "summary.json")

    @property
    def weights_sha256(self) -> str:
        """Checksum of the final weights; empty where the run is not finished or older than checksums."""
        return str(self.summary.get("weights_sha256") or "") if self.finished else ""

    @property
    def environment(self) -> dict[str, Any]:
        """Versions, hardware, git revision and the shape of the data."""
        return _read_json(self.folder / "environment.json")


def load_config(run: Run | Path | str) -> Config:
    """Return the recipe of a run."""
    folder = run.folder if isinstance(run, Run) else Path(run)
    if not (folder / "config.toml").is_file():
        raise UserError(
            f"{folder} is no run: it has no config.toml; make one with `lowcurve train RECIPE`, and "
            f"name a folder of transformers as hf:{folder}"
        )
    return read_config(folder / "config.toml")


def load(run: Run | Path | str, model: nn.Module | None = None, factory: Factory | None = None) -> nn.Module:
    """Return the trained network of a run, or what `save` has kept in a folder, in eval mode.

    Files of a run may name a function that made its network. That name is not imported: pass the network as `model`
    (before its surgery, or after it: then it is filled and returned), or the function or its name as `factory`.
    """
    if not isinstance(run, Run):
        checks.path(run=run)
    check_factory(factory)
    run = run if isinstance(run, Run) else Run(Path(run))
    if is_saved(run.folder):
        return load_saved(run.folder, model, factory)
    config = run.config
    if not run.finished:
        raise UserError(f"{run.folder} is not finished; run its recipe again with --resume auto")
    weights = _read_weights(run)
    if model is None or model.state_dict().keys() != weights.keys():
        make = factory or run.factory if model is None else partial(copy.deepcopy, model)
        with torch.random.fork_rng(devices=[]):
            model = make_network(config, *_shape(run), run.folder, make)
    load_weights(model, weights, str(run.folder))
    return model.eval()


def _shape(run: Run) -> tuple[tuple[int, ...], int]:
    """Return the shape of one input and the number of classes."""
    made = run.environment
    try:
        data = made["data"]
        return tuple(map(int, data["input_size"])), int(data["num_classes"])
    except (KeyError, TypeError, ValueError):
        raise UserError(f"{run.folder}/environment.json does not tell the data's shape; train it again") from None


def save_model(folder: Path, model: nn.Module) -> str:
    """Write the final weights; return their SHA-256."""
    weights = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in model.state_dict().items()}
    data = safetensors.torch.save(weights)
    write_atomic(folder / "model.safetensors", data)
    return hashlib.sha256(data).hexdigest()


def _read_weights(run: Run) -> dict[str, Tensor]:
    path, expected = run.folder / "model.safetensors", run.weights_sha256
    if not expected:
        raise UserError(f"{run.folder}/summary.json does not tell the SHA-256 of the weights; train it again")
    try:
        data = read_bytes(path)
        if hashlib.sha256(data).hexdigest() != expected:
            raise UserError(f"{path} has been altered since its run was finished; train it again")
        return safetensors.torch.load(data)
    except (OSError, SafetensorError) as error:
        raise UserError(f"cannot read {path}: {error}; train it again") from None


def run_environment(run: Run, dataset: Dataset, world_size: int) -> dict[str, Any]:
    """Describe what a run is made with; where it is resumed, "earlier" keeps what it was begun with."""
    try:
        last = run.environment
    except UserError:  # a new run
        last = {}
    earlier = [*last.get("earlier", ()), {key: last.get(key) for key in ("started", "git", "torch", "processes")}]
    return {
        "lowcurve": lowcurve.__version__,
        "git": git_revision(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "processes": world_size,
        "seed": run.config.train.seed,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(sys.argv),
        "earlier": earlier if last else [],
        "data": {
            "title": dataset.title,
            "train": len(dataset.train),
            "test": len(dataset.test),
            "input_size": list(dataset.input_size),
            "num_classes": dataset.num_classes,
            **sample_digests(dataset),
        },
    }


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_bytes(path))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"cannot read {path}: {error}; train the run again") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} should hold a JSON object, got {type(content).__name__}; train the run again")
    return content

"""What is measured of a trained run, and kept beside it in RUN/experiments/NAME.json with the settings used.

A measurement is a function of a `Subject` and its settings that returns numbers and lists of numbers. It is taken
once: the same settings find the file, other settings replace it.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowcurve.experiments.attacks import PGD_RADII, STRONG_RADIUS
from lowcurve.experiments.files import environment, write_json
from lowcurve.experiments.gradient_robustness import RADII
from lowcurve.experiments.presets import Samples

if TYPE_CHECKING:
    from torch import Tensor, nn

    from lowcurve.data.dataset import Dataset
    from lowcurve.experiments.grid import Cell

Settings = dict[str, Any]
SEED = 0  # of the choice of samples and of the attacks' and the noise's random numbers


class Subject:
    """A trained run to be measured: its model in eval mode, and samples of its data."""

    def __init__(self, cell: "Cell") -> None:
        self.cell = cell

    @cached_property
    def model(self) -> "nn.Module":
        """The trained model."""
        from lowcurve.training.runs import load

        return load(self.cell.folder)

    @cached_property
    def dataset(self) -> "Dataset":
        """The run's data, with the run's limits."""
        from lowcurve.data import load_dataset

        data = self.cell.config.data
        return load_dataset(data.name, data.dir).subset(data.limit_train, data.limit_test)

    def samples(self, count: int, split: str = "test") -> "tuple[Tensor, Tensor]":
        """Return `count` samples of a split, without augmentation; the same for every run on this data."""
        chosen = (self.dataset.test if split == "test" else self.dataset.train).subset(count, SEED)
        return chosen.batch(slice(None))

    def accuracy(self, split: str = "test") -> float:
        """Return the accuracy on a whole split."""
        import torch

        part = self.dataset.test if split == "test" else self.dataset.train
        correct = 0
        with torch.no_grad():
            for start in range(0, len(part), 500):
                x, y = part.batch(slice(start, start + 500))
                correct += int((self.model(x).argmax(1) == y).sum())
        return correct / len(part)


@dataclass(frozen=True)
class Measurement:
    """How something is measured, and how a preset's sample counts become its settings."""

    measure: Callable[[Subject, Settings], Mapping[str, Any]]
    settings: Callable[[Samples], Settings]


def geometry(subject: Subject, settings: Settings) -> dict[str, Any]:
    """Measure the loss's gradient, Hessian and curvature, and the curvature of the margin: means and medians."""
    from lowcurve.geometry.dataset import measure

    split = settings["split"]
    prefix = "train_" if split == "train" else ""
    part = subject.dataset.train if split == "train" else subject.dataset.test
    found = measure(
        subject.model,
        part,
        count=settings["samples"],
        of=tuple(settings["of"]),
        tol=settings["tol"],
        seed=SEED,
    )
    values: dict[str, Any] = {"accuracy": subject.accuracy(split)}
    for name in found.columns:
        if name.endswith(("gradient_norm", "hessian_norm", "curvature")):
            summary = found.summary(name)
            values |= {
                name: summary.mean,
                f"{name}_median": summary.median,
                f"{name}_top_share": summary.top_share,
            }
            values[f"{name}_not_finite"] = summary.not_finite
    return {prefix + key: value for key, value in values.items()}


def stability(subject: Subject, settings: Settings) -> dict[str, Any]:
    """Measure the relative change of the loss's gradient under random noise, and the predicted r·C_f."""
    from lowcurve.geometry.stability import gradient_stability

    x, y = subject.samples(settings["samples"])
    found = gradient_stability(subject.model, x, y, settings["radii"], samples=settings["draws"], seed=SEED)
    change, predicted = found.mean.tolist(), found.predicted.tolist()
    middle = len(change) // 2
    return {
        "stability_radii": list(settings["radii"]),
        "stability_curve": change,
        "stability_predicted": predicted,
        "stability_small": change[0],
        "stability_middle": change[middle],
        "stability_large": change[-1],
        "stability_over_theory": change[middle] / predicted[middle],
    }


def pgd(subject: Subject, settings: Settings) -> dict[str, Any]:
    """Attack by PGD at each radius; the clean accuracy is that of the same samples."""
    radii = settings["radii"]
    left = {radius: _accuracy_under(subject, "pgd", radius, settings) for radius in (0.0, *radii)}
    return {
        "accuracy": left[0.0],
        **{f"pgd_{radius:g}": left[radius] for radius in radii},
        "pgd_radii": [0.0, *radii],
        "pgd_curve": [100 * accuracy for accuracy in left.values()],
    }


def autoattack(subject: Subject, settings: Settings) -> dict[str, Any]:
    """Attack by APGD-T and Square at one radius."""
    radius = settings["radius"]
    return {
        "accuracy": _accuracy_under(subject, "pgd", 0.0, settings | {"steps": 1}),
        "apgd_t": _accuracy_under(subject, "apgd-t", radius, settings | {"steps": settings["apgd_steps"]}),
        "square": _accuracy_under(subject, "square", radius, settings | {"steps": settings["square_queries"]}),
    }


def _accuracy_under(subject: Subject, name: str, radius: float, settings: Settings) -> float:
    from lowcurve.attacks import attack

    x, y = subject.samples(settings["samples"])
    kept = 0
    for start in range(0, len(x), 128):
        part = slice(start, start + 128)
        result = attack(subject.model, x[part], y[part], name, eps=radius, steps=settings["steps"], seed=SEED)
        kept += int((~result.success).sum())
    return kept / len(x)


MEASUREMENTS: dict[str, Measurement] = {
    "geometry": Measurement(
        geometry, lambda s: {"split": "test", "samples": s.geometry, "of": ["loss", "margin"], "tol": 1e-2}
    ),
    "geometry-train": Measurement(
        geometry, lambda s: {"split": "train", "samples": s.geometry, "of": ["loss"], "tol": 1e-2}
    ),
    "stability": Measurement(stability, lambda s: {"samples": s.stability, "radii": list(RADII), "draws": 4}),
    "pgd": Measurement(pgd, lambda s: {"samples": s.pgd, "steps": s.pgd_steps, "radii": list(PGD_RADII)}),
    "autoattack": Measurement(
        autoattack,
        lambda s: {
            "samples": s.strong,
            "radius": STRONG_RADIUS,
            "apgd_steps": s.apgd_steps,
            "square_queries": s.square_queries,
        },
    ),
}


def take(name: str, cell: "Cell", samples: Samples) -> dict[str, Any]:
    """Take a measurement of a trained run and write it beside the run."""
    settings = MEASUREMENTS[name].settings(samples)
    started = time.perf_counter()
    values = MEASUREMENTS[name].measure(Subject(cell), settings)
    record = {
        "values": dict(values),
        "settings": settings,
        "seed": SEED,
        "seconds": round(time.perf_counter() - started, 2),
        "environment": environment(),
    }
    write_json(_path(cell.folder, name), record)
    return record


def read(folder: Path, name: str, samples: Samples) -> dict[str, Any] | None:
    """Return the record of a measurement taken with these settings, None where there is none."""
    try:
        record: dict[str, Any] = json.loads(_path(folder, name).read_text())
    except (OSError, json.JSONDecodeError):
        return None
    return record if record["settings"] == MEASUREMENTS[name].settings(samples) else None


def missing(folder: Path, names: Sequence[str], samples: Samples) -> list[str]:
    """Return the measurements that have not been taken of the run in `folder`."""
    return [name for name in names if read(folder, name, samples) is None]


def _path(folder: Path, name: str) -> Path:
    return folder / "experiments" / f"{name}.json"

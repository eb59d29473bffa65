"""What is measured of a trained run, and kept beside it in RUN/experiments/NAME.json with the settings used.

A measurement is taken once: the same settings find the file, other settings replace it.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowcurve.environment import environment
from lowcurve.errors import UserError
from lowcurve.experiments import moons, probes
from lowcurve.experiments.attacks import PGD_RADII, STRONG_RADIUS
from lowcurve.experiments.presets import Samples
from lowcurve.experiments.probes import Settings, Values
from lowcurve.experiments.schema import Taken, check, read_json
from lowcurve.experiments.subject import SEED, Subject
from lowcurve.files import write_json
from lowcurve.geometry.stability import RADII

if TYPE_CHECKING:
    from lowcurve.experiments.grid import Cell


@dataclass(frozen=True)
class Measurement:
    """How something is measured, and how a preset's sample counts become its settings."""

    measure: Callable[[Subject, Settings], Values]
    settings: Callable[[Samples], Settings]


MEASUREMENTS: dict[str, Measurement] = {
    "geometry": Measurement(
        probes.geometry,
        lambda s: {"split": "test", "samples": s.geometry, "of": ["loss", "margin"], "tol": 1e-2},
    ),
    "geometry-train": Measurement(
        probes.geometry, lambda s: {"split": "train", "samples": s.geometry, "of": ["loss"], "tol": 1e-2}
    ),
    "stability": Measurement(probes.stability, lambda s: {"samples": s.stability, "radii": list(RADII), "draws": 4}),
    "pgd": Measurement(probes.pgd, lambda s: {"samples": s.pgd, "steps": s.pgd_steps, "radii": list(PGD_RADII)}),
    "autoattack": Measurement(
        probes.autoattack,
        lambda s: {
            "samples": s.strong,
            "radius": STRONG_RADIUS,
            "apgd_steps": s.apgd_steps,
            "square_queries": s.square_queries,
        },
    ),
    "certificate": Measurement(
        probes.certificate, lambda s: {"samples": s.stability, "radii": [0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5]}
    ),
    "boundary": Measurement(probes.boundary, lambda s: {"box": list(moons.BOX), "steps": 80}),
    "saliency": Measurement(probes.saliency, lambda s: {"samples": s.stability, "radius": 0.1, "shown": 4}),
}


def take(name: str, cell: "Cell", samples: Samples) -> dict[str, Any]:
    """Take a measurement of a trained run and write it beside the run."""
    settings = MEASUREMENTS[name].settings(samples)
    started = time.perf_counter()
    values = MEASUREMENTS[name].measure(Subject(cell), settings)
    record = {
        "values": values,
        "settings": settings,
        "seed": SEED,
        "seconds": round(time.perf_counter() - started, 2),
        "environment": environment(),
    }
    write_json(_path(cell.folder, name), record)
    return record


def read(folder: Path, name: str, samples: Samples) -> dict[str, Any] | None:
    """Return the record of a measurement taken with these settings, None where there is none or it is damaged."""
    path = _path(folder, name)
    try:
        record = check(Taken, read_json(path), path)
    except UserError:  # it is taken again
        return None
    return record if fits(name, record, samples) else None


def fits(name: str, record: Mapping[str, Any], samples: Samples) -> bool:
    """Whether a measurement was taken with the settings that `samples` ask for."""
    return name in MEASUREMENTS and bool(record["settings"] == MEASUREMENTS[name].settings(samples))


def missing(folder: Path, names: Sequence[str], samples: Samples) -> list[str]:
    """Return the measurements that have not been taken of the run in `folder`."""
    return [name for name in names if read(folder, name, samples) is None]


def _path(folder: Path, name: str) -> Path:
    return folder / "experiments" / f"{name}.json"

"""What do train, measure, attack, certify and tune leave in a run's folder? Read, checked, and flat by name."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue

from lowcurve.evaluation.checked import Count, Name, Number, Numbers, Part, Text, check, read_json
from lowcurve.evaluation.measurement import Values
from lowcurve.training.runs import Run

MEASURES = ("gradient_norm", "hessian_norm", "curvature", "margin_curvature")
RECTIFIERS = ("relu", "hardtanh")  # for which a softplus can stand in; a network of them has the Hessian zero
PERCENT = 100.0


class SummaryPart(Part):
    """The distribution of a measure over samples."""

    mean: Number | None
    median: Number | None


class StabilityPart(Part):
    """How a gradient changes with the distance."""

    radii: Numbers
    mean: Numbers
    predicted: Numbers


class MeasureFile(Part):
    """`RUN/measure/summary.json`."""

    settings: dict[Name, JsonValue]
    geometry: dict[Literal["train", "test"], dict[Name, Number | SummaryPart | None]]
    stability: dict[Name, StabilityPart]


class AttackedPart(Part):
    """What an attack leaves at a radius."""

    attack: Name
    eps: Number
    accuracy: Number
    samples: Count


class AttackFile(Part):
    """`RUN/attack/summary.json`."""

    norm: Text
    flags: list[Text]
    table: list[AttackedPart]


class LayerPart(Part):
    """A layer's constants."""

    name: Text
    kind: Text
    norm: Number | None


class CertifyFile(Part):
    """`RUN/certify/summary.json`."""

    method: Text
    samples: Count
    accuracy: Number
    vacuous: bool
    median: dict[Name, Number | None]
    certified_accuracy: dict[Name, Number]
    layers: list[LayerPart]


class TunedPart(Part):
    """The network at one β; null: as it is."""

    beta: Number | None
    accuracy: Number
    margin_curvature: Number
    robust: dict[Name, Number]
    flags: list[Text]


class TuneFile(Part):
    """`RUN/tune/summary.json`."""

    samples: Count
    radius: Number
    points: Annotated[list[TunedPart], Field(min_length=1)]


class ExplainedPart(Part):
    """One side of a bound on explanations, by radius; null where there is no bound."""

    relative: list[Number | None]
    cosine: list[Number | None]


class ExplainFile(Part):
    """`RUN/certify/explanations.json`."""

    of: Text
    samples: Count
    radii: Numbers
    crossings: Count
    stable: Numbers
    certified: ExplainedPart
    attacked: ExplainedPart


class NoiseFile(Part):
    """`RUN/attack/explanations.json`: how alike the explanations of a model are before and after noise."""

    method: Text
    radius: Number
    samples: Count
    similarity: Number
    overlap: Number


def training(run: Run) -> Values:
    """Return the last figures of a training, and each figure over the epochs; of β, γ and σ the mean over layers."""
    judged = f"{run.config.data.judged}_"  # held-out samples share no column with test samples
    epochs = [{re.sub("^test_", judged, key): value for key, value in row.items()} for row in run.metrics]
    names = dict.fromkeys(key for row in epochs for key in row if key not in ("epoch", "lr"))
    values: Values = {"epochs": len(epochs)}
    for name in names:
        known = [(row["epoch"], _mean(row[name])) for row in epochs if name in row and row[name] not in (None, {})]
        scale = PERCENT if name.endswith("accuracy") else 1.0
        if known:
            values |= {f"{name}_epochs": [float(epoch) for epoch, _ in known]}
            values |= {f"{name}_curve": [scale * value for _, value in known], name: known[-1][1]}
    return values


def _mean(value: Any) -> float:
    return sum(value.values()) / len(value) if isinstance(value, dict) else value


def geometry(run: Run) -> Values:
    """Return what `measure` found on test data, or on what was held out."""
    found = _read(MeasureFile, run.folder / "measure")
    test = found.get("geometry", {}).get("test", {})
    values: Values = {"accuracy": test["accuracy"]} if test.get("accuracy") is not None else {}
    kinks = found.get("settings", {}).get("kinks") or {}
    if kinks:
        values["flags"] = [f"the Hessian does not see the kinks of {', '.join(kinks)}"]
    unseen = any(part in name.lower() for name in kinks for part in RECTIFIERS)
    if unseen:
        values["flags"][0] += ", so its curvature is left out: lowcurve measure --stand-in 1000 measures it"
    for name in MEASURES[:1] if unseen else MEASURES:
        if isinstance(test.get(name), dict):
            values |= {name: test[name]["mean"], f"{name}_median": test[name]["median"]}
    for direction, profile in found.get("stability", {}).items():
        values |= {f"{direction}_radii": profile["radii"], f"{direction}_change": profile["mean"]}
        values |= {f"{direction}_predicted": profile["predicted"]}
    return values


def attacks(run: Run) -> Values:
    """Return the accuracy that each attack leaves, by radius."""
    found = _read(AttackFile, run.folder / "attack")
    values: Values = {"flags": found.get("flags", [])} if found else {}
    clean = [cell["accuracy"] for cell in found.get("table", []) if cell["attack"] == "clean"]
    for cell in found.get("table", []):
        if cell["attack"] == "clean":
            values["accuracy"] = cell["accuracy"]
            continue
        name = cell["attack"]
        values[f"{name}={cell['eps']:g}"] = cell["accuracy"]
        values.setdefault(f"{name}_radii", [0.0] * len(clean)).append(cell["eps"])
        values.setdefault(f"{name}_curve", [PERCENT * value for value in clean]).append(PERCENT * cell["accuracy"])
    return values


def certificates(run: Run) -> Values:
    """Return certified accuracy by radius, and median radii."""
    found = _read(CertifyFile, run.folder / "certify")
    if not found:
        return {}
    shares = {0.0: found["accuracy"]} | {float(radius): share for radius, share in found["certified_accuracy"].items()}
    return {
        "accuracy": found["accuracy"],
        **{f"median_{name}": value for name, value in found["median"].items() if value is not None},
        "certified_radii": list(shares),
        "certified_curve": [PERCENT * share for share in shares.values()],
        "sigma": {layer["name"]: layer["norm"] for layer in found["layers"] if layer["norm"] is not None},
    }


def certified_explanations(run: Run) -> Values:
    """Return how much gradients can change at most, and how much they were changed, by radius."""
    path = run.folder / "certify" / "explanations.json"
    if not path.exists():
        return {}
    found = check(ExplainFile, read_json(path), path)
    values: Values = {"samples": found["samples"], "crossings": found["crossings"]}
    columns = [found[side][name] for name in ("relative", "cosine") for side in ("certified", "attacked")]
    rows = list(zip(found["radii"], found["stable"], *columns, strict=True))
    for radius, stable, *_, proven, measured in rows:
        values |= {f"stable={radius:g}": stable, f"proven={radius:g}": proven, f"found={radius:g}": measured}
    known = [row for row in rows if None not in row]
    if known:
        names = ("explained_radii", "explained_stable", "explained_certified", "explained_attacked")
        values |= {name: [row[place] for row in known] for place, name in enumerate(names)}
    return values


def tuned(run: Run) -> Values:
    """Return what the network is as it is, at the β that resists attacks best, and at each β."""
    found = _read(TuneFile, run.folder / "tune")
    if not found:
        return {}
    points = found["points"]
    swept = sorted((point for point in points if point["beta"] is not None), key=lambda point: point["beta"])
    values: Values = {"samples": found["samples"], "radius": found["radius"]}
    values["flags"] = [f"{_beta(point)}: {flag}" for point in points for flag in point["flags"]]
    best = max(swept, key=lambda point: point["robust"].get("worst", 0.0), default=None)
    for place, point in (("before", points[0]), ("best", best)):
        if point is not None:
            values |= {f"{key}_{place}": value for key, value in _flat(point).items()}
    for key in _flat(swept[0]) if swept else ():
        scale = 1.0 if key == "margin_curvature" else PERCENT
        drawn = [(point["beta"], scale * flat[key]) for point in swept if key in (flat := _flat(point))]
        values[f"{key}_betas"], values[f"{key}_curve"] = (list(axis) for axis in zip(*drawn, strict=True))
    return values | ({"beta_best": best["beta"]} if best else {})


def _flat(point: dict[str, Any]) -> dict[str, float]:
    return {"accuracy": point["accuracy"], "margin_curvature": point["margin_curvature"], **point["robust"]}


def _beta(point: dict[str, Any]) -> str:
    return "as it is" if point["beta"] is None else f"β = {point['beta']:g}"


def explanations(run: Run) -> Values:
    """Return how alike explanations are before and after noise."""
    path = run.folder / "attack" / "explanations.json"
    return check(NoiseFile, read_json(path), path) if path.exists() else {}


def _read(kind: type[Part], folder: Path) -> dict[str, Any]:
    path = folder / "summary.json"
    return check(kind, read_json(path), path) if path.exists() else {}

"""Your own runs as results: what was trained, measured, attacked, certified and explained of each, side by side."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lowcurve.evaluation.checked import check
from lowcurve.evaluation.measurement import Values
from lowcurve.evaluation.names import data_name
from lowcurve.evaluation.schema import Record, ResultFile
from lowcurve.experiments.experiment import ACCURACY, Column, Curve, Experiment, Row
from lowcurve.experiments.records import new_record, setting
from lowcurve.experiments.results import Result, find_results, load_results, tabulate
from lowcurve.report import own_files
from lowcurve.training.config import dump_config
from lowcurve.training.runs import Run

TITLES = {"beta": "mean β", "gamma": "mean γ", "sigma": "mean σ", "curvature": "penalty on β and γ"}
ORDER = (
    *("loss", "test_accuracy", "held-out_accuracy", "beta", "gamma", "sigma", "cross_entropy", "train_accuracy"),
    *("test_loss", "held-out_loss"),
)


def find_runs(path: Path) -> list[Path]:
    """Return `path` if it is a run's folder, else the runs in it."""
    if (path / "config.toml").is_file():
        return [path]
    return sorted(child for child in path.glob("*") if (child / "config.toml").is_file())


def sort_out(folders: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Return the folders with results, and the runs in the others; a folder with neither is refused."""
    results, runs = [], []
    for folder in folders:
        if (folder / "config.toml").is_file() or not find_results(folder):
            runs += find_runs(folder) or [*load_results(folder)]
        else:
            results.append(folder)
    return results, runs


def own_results(folders: Sequence[Path]) -> tuple[list[Result], dict[str, dict[str, Any]]]:
    """Return a result per kind of measurement that any of the runs has, and the record of each run."""
    runs = {name: Run(folder) for name, folder in _named(folders).items()}
    results, flat = [], {}
    for kind, (read, experiment, verb) in TABLES.items():
        values = {name: found for name, run in runs.items() if (found := read(run))}
        flat[kind] = values
        if values:
            results.append(_result(experiment(values), runs, values, verb))
    sigma = {name: found.get("sigma", {}) for name, found in flat["certificates"].items()}
    records = {
        name: new_record(name, run, dump_config(run.config), f"lowcurve train {run.folder / 'config.toml'}")
        for name, run in runs.items()
    }
    return results, {
        name: check(Record, {**record, "sigma": sigma.get(name, {})}, runs[name].folder)
        for name, record in records.items()
    }


def _named(folders: Sequence[Path]) -> dict[str, Path]:
    """Give each run a name of its own: its folder's, or one made of it."""
    named: dict[str, Path] = {}
    for folder in dict.fromkeys(folder.resolve() for folder in folders):
        name = data_name(folder.name)
        named[name if name not in named else data_name(f"run:{folder}")] = folder
    return named


def _result(experiment: Experiment, runs: Mapping[str, Run], values: Mapping[str, Values], verb: str) -> Result:
    seeds = {name: {runs[name].config.train.seed: found} for name, found in values.items()}
    content = tabulate(
        experiment,
        seeds,
        {name: [name] for name in values},
        preset="own",
        setting="; ".join(dict.fromkeys(setting(runs[name]) for name in values)),
        command="; ".join(f"{verb} {runs[name].folder}" for name in values),
    )
    content["notes"] = [f"{name}: check: {flag}" for name, found in values.items() for flag in found.get("flags", [])]
    return Result(**check(ResultFile, content, runs[next(iter(values))].folder))


def _experiment(
    name: str, title: str, values: Mapping[str, Values], columns: Sequence[Column], curves: Sequence[Curve]
) -> Experiment:
    known = {key for found in values.values() for key in found}
    return Experiment(
        name=name,
        title=title,
        source="Your runs",
        data="",
        model="",
        rows=tuple(Row(run, run, "") for run in values),
        measurements=(),
        columns=tuple(column for column in columns if column.key in known),
        curves=tuple(curve for curve in curves if curve.y in known),
    )


def _training(values: Mapping[str, Values]) -> Experiment:
    keys = dict.fromkeys(key for found in values.values() for key in found if f"{key}_curve" in found)
    ordered = [key for key in ORDER if key in keys] + [key for key in keys if key not in ORDER]
    columns = [
        Column("test_accuracy", "Test accuracy (%)", 2, "high", 100.0),
        Column("held-out_accuracy", "Held-out accuracy (%)", 2, "high", 100.0),
        Column("train_accuracy", "Training accuracy (%)", 2, "high", 100.0),
        *(
            Column(key, TITLES.get(key, key.replace("_", " ")), 0 if key == "images_per_second" else 4)
            for key in ordered
            if "accuracy" not in key
        ),
        Column("epochs", "Epochs", 0, "none"),
    ]
    plain = {"loss", "cross_entropy", "test_loss", "held-out_loss"}
    columns = [column if column.key in plain or column.better != "low" else _neutral(column) for column in columns]
    curves = [
        Curve(f"{key}_epochs", f"{key}_curve", "epoch", TITLES.get(key, key.replace("_", " ")) + _unit(key))
        for key in ordered
        if key != "images_per_second"
    ]
    return _experiment("training", "Training", values, columns, curves)


def _neutral(column: Column) -> Column:
    return Column(column.key, column.label, column.digits, "none", column.scale)


def _unit(key: str) -> str:
    return " (%)" if key.endswith("accuracy") else ""


def _geometry(values: Mapping[str, Values]) -> Experiment:
    labels = {"gradient_norm": "‖∇f‖₂", "hessian_norm": "‖∇²f‖₂", "curvature": "C_f", "margin_curvature": "C_margin"}
    columns = [ACCURACY]
    for key, label in labels.items():
        columns += [Column(key, f"E {label}", 3), Column(f"{key}_median", f"median {label}", 3)]
    curves = [
        Curve(
            *(f"{direction}_radii", f"{direction}_change", "norm of the noise"),
            f"gradient's change ({direction})",
            log=True,
            predicted=f"{direction}_predicted",
        )
        for direction in ("random", "adversarial")
    ]
    return _experiment("geometry", "Geometry", values, columns, curves)


def _attacks(values: Mapping[str, Values]) -> Experiment:
    cells = dict.fromkeys(key for found in values.values() for key in found if "=" in key)
    names = dict.fromkeys(key.partition("=")[0] for key in cells)
    columns = [ACCURACY, *(Column(key, f"{key.replace('=', ', ε = ')} (%)", 1, "high", 100.0) for key in cells)]
    curves = [Curve(f"{name}_radii", f"{name}_curve", "radius ε", f"accuracy under {name} (%)") for name in names]
    return _experiment("attacks", "Accuracy under attack", values, columns, curves)


def _certificates(values: Mapping[str, Values]) -> Experiment:
    columns = [
        ACCURACY,
        Column("median_radius", "median certified radius", 4, "high"),
        Column("median_lipschitz_radius", "by the Lipschitz bound alone", 4, "high"),
        Column("median_attack_distance", "nearest mistake found", 4, "high"),
    ]
    curves = [Curve("certified_radii", "certified_curve", "ℓ₂ radius", "certified accuracy (%)")]
    return _experiment("certificates", "Certificates", values, columns, curves)


def _certified_explanations(values: Mapping[str, Values]) -> Experiment:
    radii = dict.fromkeys(key.partition("=")[2] for found in values.values() for key in found if "=" in key)
    columns = [
        Column(f"{key}={radius}", f"{label} at {radius}", digits, "high", scale)
        for radius in radii
        for key, label, digits, scale in (
            ("proven", "cosine proven", 3, 1.0),
            ("found", "cosine found", 3, 1.0),
            ("stable", "samples proven ≥ 0.9 (%)", 1, 100.0),
        )
    ]
    curve = Curve(
        *("explained_radii", "explained_attacked", "ℓ₂ radius"),
        "gradient's relative change: found, and proven at most (dots)",
        log=True,
        predicted="explained_certified",
    )
    columns += [Column("samples", "samples", 0, "none"), Column("crossings", "beyond the bound", 0)]
    return _experiment("certified-explanations", "Certified explanations", values, columns, [curve])


def _explanations(values: Mapping[str, Values]) -> Experiment:
    columns = [
        Column("similarity", "cosine before and after noise", 3, "high"),
        Column("overlap", "top features in common (%)", 1, "high", 100.0),
        Column("radius", "norm of the noise", 2, "none"),
        Column("samples", "samples", 0, "none"),
    ]
    return _experiment("explanations", "Explanations under noise", values, columns, [])


def _sweep(values: Mapping[str, Values]) -> Experiment:
    columns = [
        Column("accuracy_before", "accuracy (%)", 2, "high", 100.0),
        Column("margin_curvature_before", "median C_margin", 3),
        Column("worst_before", "worst attack (%)", 1, "high", 100.0),
        Column("beta_best", "most robust β", 2, "none"),
        Column("accuracy_best", "accuracy there (%)", 2, "high", 100.0),
        Column("margin_curvature_best", "median C_margin there", 3),
        Column("worst_best", "worst attack there (%)", 1, "high", 100.0),
        Column("radius", "radius of the attacks", 3, "none"),
        Column("samples", "samples", 0, "none"),
    ]
    keys = dict.fromkeys(
        key.removesuffix("_curve") for found in values.values() for key in found if key.endswith("_curve")
    )
    titles = {"accuracy": "accuracy (%)", "margin_curvature": "median C_margin"}
    curves = [
        Curve(f"{key}_betas", f"{key}_curve", "β of all activations", titles.get(key, f"accuracy under {key} (%)"))
        for key in keys
    ]
    return _experiment("sweep", "One β for all activations, without training", values, columns, curves)


OwnTable = tuple[Callable[[Run], Values], Callable[[Mapping[str, Values]], Experiment], str]
TABLES: dict[str, OwnTable] = {
    "training": (own_files.training, _training, "lowcurve train --resume auto"),
    "geometry": (own_files.geometry, _geometry, "lowcurve measure"),
    "attacks": (own_files.attacks, _attacks, "lowcurve attack"),
    "certificates": (own_files.certificates, _certificates, "lowcurve certify"),
    "certified-explanations": (
        *(own_files.certified_explanations, _certified_explanations),
        "lowcurve certify --explanations",
    ),
    "sweep": (own_files.tuned, _sweep, "lowcurve tune"),
    "explanations": (own_files.explanations, _explanations, "lowcurve attack --saliency 16"),
}

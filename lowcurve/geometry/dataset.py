"""The geometry of a model on many samples of a data set: a table with one row per sample."""

import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lowcurve.data.dataset import Split, how_many, stratified
from lowcurve.digest import digest, model_digest
from lowcurve.errors import unknown_name
from lowcurve.files import atomically, make_folder
from lowcurve.geometry.curvature import curvature
from lowcurve.geometry.functions import FUNCTIONS, checked_inputs
from lowcurve.geometry.kinks import KinkWarning, kinks, smooth_stand_in, warn_of_kinks
from lowcurve.geometry.rows import Rows
from lowcurve.geometry.summary import Discrepancy, Summary, relative_discrepancy, summarize
from lowcurve.observe import observing
from lowcurve.outputs import ask, logits_of
from lowcurve.progress import track

MEASURES = ("gradient_norm", "hessian_norm", "curvature")


@dataclass(frozen=True, eq=False)
class Measurements:
    """A table with one row per sample. `columns` maps names to tensors of length N.

    `index` in the split, `label`, `predicted` and `loss`; then for the loss `gradient_norm`, `hessian_norm`,
    `curvature`, `residual`, `iterations`, and the same of the margin as `margin_gradient_norm` and so on.
    """

    columns: Mapping[str, Tensor]

    def __len__(self) -> int:
        return len(self.columns["index"])

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.columns:
            raise unknown_name("column", name, self.columns)
        return self.columns[name]

    @property
    def accuracy(self) -> float:
        """The share of samples classified as labelled."""
        return float((self["predicted"] == self["label"]).double().mean())

    def summary(self, name: str) -> Summary:
        """Summarize one column."""
        return summarize(self[name])

    def caveats(self, tol: float) -> str:
        """Say how many samples are not finite, or have a Hessian norm whose residual is above `tol` of it."""
        broken = int((~torch.isfinite(self["curvature"])).sum())
        rough = int((self["residual"] > tol * self["hessian_norm"]).sum())
        notes = {"not finite": broken, "stopped at the largest number of iterations": rough}
        return "".join(f", {count} {note}" for note, count in notes.items() if count)

    def to_dict(self) -> dict[str, Any]:
        """Return the number of samples, the accuracy and the summary of each measure, ready for JSON."""
        names = [name for name in self.columns if name.endswith(MEASURES)]
        return {
            "samples": len(self),
            "accuracy": self.accuracy,
            **{name: self.summary(name).to_dict() for name in names},
        }

    def to_csv(self, path: str | os.PathLike[str]) -> Path:
        """Write all rows as comma-separated values; the file appears whole or not at all."""
        from pyarrow import csv

        return self._write(Path(path), csv.write_csv)

    def to_parquet(self, path: str | os.PathLike[str]) -> Path:
        """Write all rows as parquet; the file appears whole or not at all."""
        from pyarrow import parquet

        return self._write(Path(path), parquet.write_table)

    def _write(self, path: Path, writer: Callable[..., object]) -> Path:
        import pyarrow

        make_folder(path.parent)
        with atomically(path) as file:
            writer(pyarrow.table({name: column.numpy() for name, column in self.columns.items()}), file)
        return path


def measure(
    model: nn.Module,
    split: Split,
    *,
    count: int | float | None = None,
    of: tuple[str, ...] = ("loss", "margin"),
    tol: float = 1e-2,
    max_iterations: int = 30,
    batch_size: int = 128,
    seed: int = 0,
    stand_in: float | None = None,
    unfinished: Path | None = None,
    description: str = "measuring",
) -> Measurements:
    """Measure the geometry of the loss and of the margin at samples of `split`, without augmentation.

    `count` is a number of samples (an int), a share of the split (a float up to 1) or all of it (None); they
    are drawn by `seed`, each class with its share. `tol`, `max_iterations` and `stand_in` are those of `curvature`; the
    warning of kinks comes once. `unfinished` is a file that holds what is measured so far: after a kill the same call
    goes on from there and gives what an uninterrupted one would have given.
    """
    if unknown := set(of) - set(FUNCTIONS):
        raise unknown_name("function to measure", unknown.pop(), FUNCTIONS)
    settings = {"tol": tol, "max_iterations": max_iterations, "seed": seed}
    chosen = _choose(split, count, seed)
    if stand_in is not None:
        model = smooth_stand_in(model, split.batch(chosen[:1])[0], stand_in)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    batches = chosen.split(batch_size)
    rows = Rows(unfinished, {**_about(model, split, chosen), "of": list(of), **settings}) if unfinished else None
    parts = rows.read() if rows else []
    first = split.batch(chosen[:1])[0].to(device)
    warn_of_kinks(kinks(model, checked_inputs(first)), stand_in)
    for indices in track(batches[len(parts) :], description, size=len):
        x, y = (tensor.to(device) for tensor in split.batch(indices))
        parts.append({"index": indices, "label": y.cpu(), **_measure_batch(model, x, y, of, settings)})
        if rows:
            rows.append(parts[-1])
    return Measurements({name: torch.cat([part[name] for part in parts]) for name in parts[0]})


def _measure_batch(
    model: nn.Module, x: Tensor, y: Tensor, of: tuple[str, ...], settings: dict[str, Any]
) -> dict[str, Tensor]:
    """Return the columns of some samples."""
    columns = _predict(model, x, y)
    for function in of:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", KinkWarning)  # said once for all batches
            geometry = curvature(model, x, y, of=function, **settings)
        prefix = "" if function == "loss" else f"{function}_"
        columns |= {f"{prefix}{name}": column for name, column in vars(geometry).items()}
    return {name: column.cpu() for name, column in columns.items()}


def _about(model: nn.Module, split: Split, chosen: Tensor) -> dict[str, str]:
    """Return what tells one measurement from another: digests of the model and of the samples."""
    return {
        "model": model_digest(model),
        "data": digest(split.images, split.labels, chosen),
    }


def _predict(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Return what the model says: its class and its loss."""
    with observing(model), torch.no_grad():
        logits = logits_of(ask(model, checked_inputs(x).clone()))
    return {"predicted": logits.argmax(dim=1), "loss": FUNCTIONS["loss"](logits, y)}


def _choose(split: Split, count: int | float | None, seed: int) -> Tensor:
    """Return sorted indices of the samples to measure."""
    count = how_many(count, len(split))
    if count == len(split):
        return torch.arange(len(split))
    return stratified(split.labels, count, seed)


def discrepancy(train: Measurements, test: Measurements) -> dict[str, Discrepancy]:
    """Return the relative train-test discrepancy Δ_tt of each measure that both tables hold."""
    shared = [name for name in test.columns if name.endswith(MEASURES) and name in train.columns]
    return {name: relative_discrepancy(train.summary(name), test.summary(name)) for name in shared}

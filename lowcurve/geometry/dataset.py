"""The geometry of a model on many samples of a data set: one row per sample, means with errors, quantiles."""

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from lowcurve.data.dataset import Split, stratified
from lowcurve.errors import UserError, unknown_name
from lowcurve.geometry.curvature import curvature
from lowcurve.geometry.functions import FUNCTIONS, checked_inputs
from lowcurve.modes import observing
from lowcurve.progress import track

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
MEASURES = ("gradient_norm", "hessian_norm", "curvature")


@dataclass(frozen=True)
class Summary:
    """One measure over many samples; samples that are not finite are counted and left out.

    Hessian norms and curvatures are heavy-tailed, so that a mean is often made by few samples: `top_share` is
    the part of the sum that the largest 1 % of the samples (at least one) contribute; trust the median more.
    """

    mean: float
    standard_error: float
    median: float
    quantiles: Mapping[float, float]
    top_share: float
    count: int
    not_finite: int

    def __str__(self) -> str:
        return f"{self.mean:.4g} ± {self.standard_error:.2g} (median {self.median:.4g})"


def summarize(values: Tensor) -> Summary:
    """Summarize `values` (N,): mean ± sample standard deviation / √n, quantiles, the weight of the tail.

    >>> print(summarize(torch.tensor([1.0, 2.0, 3.0])))
    2 ± 0.58 (median 2)
    """
    finite = values[torch.isfinite(values)].double()
    n = len(finite)
    if n == 0:
        nothing = dict.fromkeys(QUANTILES, math.nan)
        return Summary(math.nan, math.nan, math.nan, nothing, math.nan, 0, len(values))
    levels = torch.quantile(finite, torch.tensor(QUANTILES, dtype=torch.float64))
    quantiles = dict(zip(QUANTILES, levels.tolist(), strict=True))
    largest, total = finite.sort(descending=True).values[: max(1, n // 100)].sum(), finite.sum()
    return Summary(
        mean=float(finite.mean()),
        standard_error=float(finite.std() / math.sqrt(n)) if n > 1 else math.nan,
        median=quantiles[0.5],
        quantiles=quantiles,
        top_share=float(largest / total) if total > 0 else 0.0,
        count=n,
        not_finite=len(values) - n,
    )


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

        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        writer(pyarrow.table({name: column.numpy() for name, column in self.columns.items()}), temporary)
        temporary.replace(path)
        return path


def measure(
    model: nn.Module,
    split: Split,
    *,
    count: int | float | None = None,
    of: tuple[str, ...] = ("loss", "margin"),
    tol: float = 1e-2,
    max_iterations: int = 30,
    batch_size: int = 256,
    seed: int = 0,
    description: str = "measuring",
) -> Measurements:
    """Measure the geometry of the loss and of the margin at samples of `split`, without augmentation.

    `count` is a number of samples (an int), a share of the split (a float up to 1) or all of it (None); they
    are drawn by `seed`, each class with its share. `tol` and `max_iterations` are those of `curvature`.
    """
    if unknown := set(of) - set(FUNCTIONS):
        raise unknown_name("function to measure", unknown.pop(), FUNCTIONS)
    chosen = _choose(split, count, seed)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    pieces: dict[str, list[Tensor]] = {"index": [chosen], "label": [split.labels[chosen]]}
    for indices in track(chosen.split(batch_size), description):
        x, y = (tensor.to(device) for tensor in split.batch(indices))
        for name, column in _predict(model, x, y).items():
            pieces.setdefault(name, []).append(column.cpu())
        for function in of:
            geometry = curvature(model, x, y, of=function, tol=tol, max_iterations=max_iterations, seed=seed)
            for name, column in vars(geometry).items():
                key = name if function == "loss" else f"{function}_{name}"
                pieces.setdefault(key, []).append(column.cpu())
    return Measurements({name: torch.cat(parts) for name, parts in pieces.items()})


def _predict(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Return what the model says: its class and its loss."""
    with observing(model), torch.no_grad():
        logits = model(checked_inputs(x))
    return {"predicted": logits.argmax(dim=1), "loss": FUNCTIONS["loss"](logits, y)}


def _choose(split: Split, count: int | float | None, seed: int) -> Tensor:
    """Return sorted indices of the samples to measure."""
    if isinstance(count, float):
        if not 0 < count <= 1:
            raise UserError(f"expected a share of the samples in (0, 1] or a whole number of them, got {count}")
        count = max(1, round(count * len(split)))
    if count is None or count >= len(split):
        return torch.arange(len(split))
    if count < 1:
        raise UserError(f"expected at least 1 sample, got {count}; leave the count out to measure all")
    return stratified(split.labels, count, seed)


@dataclass(frozen=True)
class Discrepancy:
    r"""How far the test mean t of a measure is from its train mean s.

    `by_train` is |t − s| / s. The paper prints |t − s| / t, here `by_test`, but that cannot exceed 1 where
    t > s, and its table goes up to 21.8: its figures are `by_train`. `standard_error` is that of t / s.
    """

    by_train: float
    by_test: float
    standard_error: float


def discrepancy(train: Measurements, test: Measurements) -> dict[str, Discrepancy]:
    """Return the relative train-test discrepancy Δ_tt of each measure that both tables hold."""
    found = {}
    for name in test.columns:
        if not name.endswith(MEASURES) or name not in train.columns:
            continue
        t, s = test.summary(name), train.summary(name)
        ratio = t.mean / s.mean if s.mean else math.nan
        spread = math.hypot(t.standard_error / t.mean, s.standard_error / s.mean) if t.mean and s.mean else math.nan
        by_test = abs(t.mean - s.mean) / t.mean if t.mean else math.nan
        found[name] = Discrepancy(abs(ratio - 1), by_test, ratio * spread)
    return found

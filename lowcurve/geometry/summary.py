"""What a measure is like over many samples: mean with its error, median, quantiles, and the weight of its tail."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


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

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, ready for JSON: None where a value is not a number."""
        levels = {f"quantile_{level:g}": value for level, value in self.quantiles.items()}
        fields = {key: value for key, value in vars(self).items() if key != "quantiles"} | levels
        return {key: None if math.isnan(value) else value for key, value in fields.items()}

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


@dataclass(frozen=True)
class Discrepancy:
    r"""How far the test mean t of a measure is from its train mean s.

    `by_train` is |t − s| / s. The paper prints |t − s| / t, here `by_test`, but that cannot exceed 1 where t > s, and
    its table goes up to 21.8: its figures are `by_train`. `standard_error` is that of t / s, so of `by_train`.
    """

    by_train: float
    by_test: float
    standard_error: float


def relative_discrepancy(train: Summary, test: Summary) -> Discrepancy:
    """Compare the means of one measure on two splits.

    >>> ones, threes = summarize(torch.tensor([1.0, 1.0])), summarize(torch.tensor([3.0, 3.0]))
    >>> relative_discrepancy(train=ones, test=threes).by_train
    2.0
    """
    s, t = train.mean, test.mean
    if not s or not t:
        return Discrepancy(math.nan, math.nan, math.nan)
    error = t / s * math.hypot(test.standard_error / t, train.standard_error / s)
    return Discrepancy(abs(t - s) / s, abs(t - s) / t, error)

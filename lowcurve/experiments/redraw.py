"""What would other test samples and other seeds have given? Tables drawn anew from what was measured (a bootstrap).

Each draw takes as many samples, and as many seeds, as there are, with repetition. Models of a table were measured on
the same samples, so a draw takes the same of them for all, and the same seeds: differences between models vary less
than the models do. The middle 95 % of the draws are the interval of a cell or of a claim. Of two or three seeds alone
it goes from the lowest to the highest: so few tell little of what further ones would do.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy

from lowcurve.evaluation.measurement import PER_SAMPLE, read_written
from lowcurve.experiments.claims import Cell
from lowcurve.experiments.experiment import Column, Measured

DRAWS = 1000
_AT_ONCE = 2_000_000  # numbers in memory
_MEDIAN = "_median"

Place = tuple[str, int, str]  # row, seed, name of what was measured
Derive = Callable[[Mapping[str, Any]], Mapping[str, Any]]


@dataclass(frozen=True)
class Redrawn:
    """What each run gives in every draw, (DRAWS,), or as measured, (1,); and how often each draw takes a seed."""

    runs: Mapping[Cell, Mapping[int, numpy.ndarray]]
    times: Mapping[int, numpy.ndarray]

    def mean(self, cell: Cell, seeds: Collection[int] | None = None) -> numpy.ndarray | None:
        """Return the mean over all of a cell's seeds, or these, in every draw, (DRAWS,); None where chance is unknown.

        That is where a cell rests on one seed without samples.
        """
        known = {seed: one for seed, one in self.runs.get(cell, {}).items() if seeds is None or seed in seeds}
        if len(known) < 2 and all(values.size == 1 for values in known.values()):
            return None
        weights = numpy.stack([self.times[seed] for seed in known], axis=1)
        weights[weights.sum(axis=1) == 0] = 1  # none of these seeds was drawn
        values = numpy.stack([numpy.broadcast_to(one, DRAWS) for one in known.values()], axis=1)
        return numpy.asarray((weights * values).sum(axis=1) / weights.sum(axis=1))


def redraw(measured: Measured, columns: Sequence[Column], derive: Derive) -> Redrawn:
    """Draw samples and seeds `DRAWS` times; return what every run gives then."""
    rng = numpy.random.default_rng(0)
    drawn = _redraw_samples(measured, rng)
    seeds = sorted({seed for found in measured.values() for seed in found})
    times = rng.multinomial(len(seeds), [1 / len(seeds)] * len(seeds), DRAWS).T if seeds else ()
    runs: dict[Cell, dict[int, numpy.ndarray]] = {}
    for row, found in measured.items():
        by_seed = {seed: _derived(row, seed, found[seed], drawn, derive) for seed in found}
        for column in columns:
            if known := {seed: values[column.key] for seed, values in by_seed.items() if column.key in values}:
                runs[row, column.key] = {seed: column.scale * values for seed, values in known.items()}
    return Redrawn(runs, dict(zip(seeds, times, strict=True)))


def _derived(
    row: str, seed: int, values: Mapping[str, Any], drawn: Mapping[Place, numpy.ndarray], derive: Derive
) -> dict[str, numpy.ndarray]:
    """Return each number of a run: as it was measured, (1,), or in every draw of its samples, with what follows."""
    known = {key: value for key, value in values.items() if isinstance(value, int | float)}
    redrawn = {key: drawn[row, seed, key] for key in known if (row, seed, key) in drawn}
    if not redrawn:
        return {key: numpy.array([value]) for key, value in known.items()}
    if not derive(values):
        return {**{key: numpy.array([value]) for key, value in known.items()}, **redrawn}
    every = [{**values, **{key: float(draws[place]) for key, draws in redrawn.items()}} for place in range(DRAWS)]
    derived = [derive(one) for one in every]
    follow = {key: numpy.array([one.get(key, numpy.nan) for one in derived]) for key in derived[0]}
    return {**{key: numpy.array([value]) for key, value in known.items()}, **redrawn, **follow}


def _redraw_samples(measured: Measured, rng: numpy.random.Generator) -> dict[Place, numpy.ndarray]:
    """Draw the samples of each measurement anew, the same for all runs; return means and medians of each draw."""
    groups: dict[tuple[str, int], dict[Place, numpy.ndarray]] = defaultdict(dict)
    for row, found in measured.items():
        for seed, values in found.items():
            for key, (measurement, text) in values.get(PER_SAMPLE, {}).items():
                samples = read_written(text)
                groups[measurement, len(samples)][row, seed, key] = samples
    drawn: dict[Place, numpy.ndarray] = {}
    for group in groups.values():
        medians = [(row, seed, key) for row, seed, key in group if key + _MEDIAN in measured[row][seed]]
        parts = list(_draws(group, medians, rng))
        drawn |= {place: numpy.concatenate([part[place] for part in parts]) for place in parts[0]}
    return drawn


def _draws(
    group: Mapping[Place, numpy.ndarray], medians: Sequence[Place], rng: numpy.random.Generator
) -> Iterator[dict[Place, numpy.ndarray]]:
    """Yield the means, and some medians, of a part of the draws after another."""
    matrix = numpy.stack(list(group.values()), axis=1)
    there = numpy.isfinite(matrix)
    matrix, count = numpy.where(there, matrix, 0.0), len(matrix)
    for start in range(0, DRAWS, step := max(1, _AT_ONCE // count)):
        size = min(step, DRAWS - start)
        chosen = rng.integers(0, count, (size, count))
        shifted = (chosen + count * numpy.arange(size)[:, None]).ravel()
        times = numpy.bincount(shifted, minlength=size * count).reshape(size, count).astype(float)
        with numpy.errstate(invalid="ignore"):
            means = (times @ matrix) / (times @ there)
        found = dict(zip(group, means.T, strict=True))
        for row, seed, key in medians:
            found[row, seed, key + _MEDIAN] = numpy.nanmedian(group[row, seed, key][chosen], axis=1)
        yield found

"""What did the surgery do, where, and what did it leave? A report that prints as a table."""

from collections import Counter
from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True)
class Change:
    """One site: its name, what stood there, what stands there now, and what the reader should know.

    `factor` is what the site's eval-mode output is multiplied by because of the change, 1 where the function is
    kept (up to the activation's shape): 1/σ for a normalized layer that no batch norm makes up for, less than 1
    for a batch norm that is steeper than γ.
    """

    name: str
    was: str
    now: str
    note: str = ""
    factor: float = 1.0


@dataclass(frozen=True)
class ConversionReport:
    """Everything that `convert` replaced and everything that it left, with the reason."""

    replaced: tuple[Change, ...]
    left: tuple[Change, ...]

    def counts(self) -> dict[tuple[str, str], int]:
        """Return how many sites of each kind became what: (was, now) -> number."""
        return dict(Counter((change.was, change.now) for change in self.replaced))

    def factors(self) -> dict[str, float]:
        """Return, by name, the factors by which layers' outputs changed, where they did."""
        return {change.name: change.factor for change in self.replaced if change.factor != 1.0}

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Return the table's rows: name, was, now, note."""
        return [(c.name or "(model)", c.was, c.now, c.note) for c in (*self.replaced, *self.left)]

    def summary(self) -> str:
        """Return one line, such as `17 ReLU -> CenteredSoftplus, 20 BatchNorm2d -> LipschitzBatchNorm2d; 1 left`."""
        parts = [f"{count} {was} -> {now}" for (was, now), count in self.counts().items()]
        return f"{', '.join(parts) or 'nothing replaced'}; {len(self.left)} left"

    def __str__(self) -> str:
        rows = [("where", "was", "now", "note"), *self.rows()]
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        lines = ["  ".join([*map(str.ljust, row[:3], widths), row[3]]).rstrip() for row in rows]
        return "\n".join([self.summary(), "", lines[0], "-" * max(map(len, lines)), *lines[1:]])


def where(module: nn.Module, model: nn.Module) -> str:
    """Return how messages name a module of `model`: its path and its class.

    >>> where((net := nn.Sequential(nn.ReLU()))[0], net)
    '0 (ReLU)'
    """
    name = next((name for name, candidate in model.named_modules() if candidate is module), "")
    return f"{name or '(model)'} ({type(module).__name__})"

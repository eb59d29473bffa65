"""`lowcurve certify --explanations`: how little is a model's gradient proven to turn, how far was it turned?"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from torch import Tensor, nn

    from lowcurve.guarantees.explanation_curve import Sides
    from lowcurve.guarantees.network import Network

SAME = 0.9  # a gradient with this cosine points the same way


def explain(
    console: "Console",
    steps: "Network",
    model: "nn.Module",
    batch: "tuple[Tensor, Tensor]",
    radii: tuple[float, ...],
    restarts: int,
    seed: int,
) -> "Sides":
    """Bound and attack the gradient of each sample's margin at each radius, and print both."""
    import torch

    from lowcurve.attacks.manipulation import manipulate_explanation
    from lowcurve.guarantees.explanation import explain_steps
    from lowcurve.guarantees.explanation_curve import both_sides

    x, y = batch
    sides = both_sides(
        radii,
        lambda radius: explain_steps(steps, model, x, y, torch.full((len(x),), radius, dtype=torch.float64)),
        lambda radius: manipulate_explanation(model, x, y, radius, restarts=restarts, seed=seed),
    )
    _show(console, sides)
    return sides


def _show(console: "Console", sides: "Sides") -> None:
    from rich.table import Table

    columns = ("radius", "change at most", "found", "cosine at least", "found", f"share proven ≥ {SAME}")
    grid = Table(*columns, box=None, header_style="bold", title="the margin's gradient, medians", title_justify="left")
    medians = sides.medians()
    for place, (radius, share) in enumerate(zip(sides.radii, sides.stable(SAME), strict=True)):
        numbers = [medians[side][name][place] for name in ("relative", "cosine") for side in ("certified", "attacked")]
        grid.add_row(f"{radius:g}", *(f"{number:.4g}" for number in numbers), f"{share:.1%}")
    console.print(grid)
    if all(bound.vacuous for bound in sides.bounds):
        console.print(
            "these bounds are vacuous: for most samples the gradient may turn by any angle. Kinks have no bound at "
            "all; low β and spectral norms tighten it",
            style="yellow",
        )


def save_bounds(folder: Path, title: str, sides: "Sides") -> None:
    """Write a row per sample and radius, the medians, and the plot."""
    from lowcurve.files import write_csv, write_json
    from lowcurve.guarantees.explanation_curve import COLUMNS, draw_sides

    names = ("sample", "radius", *COLUMNS, *(f"attacked_{name}" for name in COLUMNS))
    write_csv(folder / "explanations.csv", names, sides.rows())
    summary: dict[str, Any] = {
        "title": title,
        "of": "margin",
        "method": sides.bounds[0].method,
        "samples": len(sides.bounds[0].change),
        "radii": list(sides.radii),
        "crossings": sides.crossings,
        "stable": sides.stable(SAME),
        **{side: {name: _finite(numbers) for name, numbers in by.items()} for side, by in sides.medians().items()},
    }
    write_json(folder / "explanations.json", summary)
    draw_sides(sides, title, folder / "explanations")


def _finite(numbers: list[float]) -> list[float | None]:
    """JSON has no infinity: a bound that does not exist is null."""
    return [number if abs(number) < float("inf") else None for number in numbers]

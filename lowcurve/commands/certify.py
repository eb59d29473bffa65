"""`lowcurve certify`: within what radius is a model's answer proven, and how much more could an attack not refute?"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lowcurve.commands import options

if TYPE_CHECKING:
    from rich.console import Console
    from torch import Tensor

    from lowcurve.guarantees.summary import Bounds
    from lowcurve.types import Certificate

RADII = (0.05, 0.1, 36 / 255, 0.2, 72 / 255, 0.3, 108 / 255, 0.5, 0.75, 1.0)  # the fractions are those of other work


def certify(
    target: options.Target,
    data: options.Data = None,
    data_dir: options.DataDir = None,
    trust: options.Trust = None,
    samples: options.Samples = "500",
    local: Annotated[bool, typer.Option(help="Refine the bounds inside each ball: larger radii, more work.")] = True,
    layers: Annotated[bool, typer.Option(help="Show the bounds layer by layer.")] = True,
    explanations: Annotated[bool, typer.Option(help="Bound, and attack, how much the gradient can change.")] = False,
    radii: Annotated[str, typer.Option(help="Radii for --explanations, joined by commas.")] = "0.05,0.1,0.2,0.5",
    restarts: Annotated[int, options.counted(1, "Starting points of the attack on explanations.")] = 4,
    output: options.Output = None,
    seed: options.Seed = 0,
) -> None:
    """Certify the test samples, look for the nearest mistakes, and draw both accuracies over the radius."""
    from lowcurve import text
    from lowcurve.attacks.boundary import boundary_distance
    from lowcurve.commands.explanations import explain, save_bounds
    from lowcurve.evaluation.subject import find_subject
    from lowcurve.guarantees.certificate import certify_steps
    from lowcurve.guarantees.graph import trace_network
    from lowcurve.guarantees.summary import bounds_of
    from lowcurve.outputs import returning_logits

    count, distances_at = options.sample_count(samples), options.positive_numbers(radii, "--radii")
    found = find_subject(target, data, data_dir, trust)
    folder = found.place(output, "certify")
    split = found.dataset.test.subset(count, seed)
    x, y = split.batch(slice(None))
    judged = f"{len(split):,} {found.dataset.judged} samples"
    console = text.console()
    console.print(text.headline(found.name, f" on {judged} of {found.dataset.title}"))
    model = returning_logits(found.model, x[:1].clone())
    steps = trace_network(model, found.dataset.input_size, gradients=explanations)
    table = bounds_of(steps, model)
    if layers:
        _show_layers(console, table)
    certificate = certify_steps(steps, model, x, y, local=local)
    distances = boundary_distance(found.model, x, y)
    _show(console, certificate, distances)
    sides = explain(console, steps, model, (x, y), distances_at, restarts, seed) if explanations else None
    if folder is not None:
        title = f"{found.name} on {found.dataset.title}, {judged}"
        _save(folder, title, certificate, distances, table)
        if sides is not None:
            save_bounds(folder, title, sides)
    options.tell_output(console, folder, "the radii and the plot")


def _show_layers(console: "Console", table: "Bounds") -> None:
    """Print each layer's constants and its share of the curvature bound."""
    from math import isinf

    from rich.table import Table

    columns = ("layer", "kind", "norm", "Lipschitz so far", "β", "γ", "share of curvature")
    grid = Table(*columns, box=None, header_style="bold")
    for row in table.layers:
        numbers = ["" if value is None else f"{value:.3g}" for value in (row.beta, row.gamma)]
        share = "" if not row.hessian else "∞" if isinf(row.hessian) else f"{row.share:.1%}"
        grid.add_row(row.name, row.kind, f"{row.norm:.3g}", f"{row.lipschitz:.3g}", *numbers, share)
    console.print(grid)
    console.print(
        f"everywhere: margins' gradient ≤ {float(table.margin_lipschitz.max()):.4g}, their Hessian ≤ "
        f"{float(table.margin_hessian.max()):.4g}; the loss's {table.loss_lipschitz.value:.4g} and "
        f"{table.loss_hessian.value:.4g}. Theorem 1's sum is {table.theorem_one.value:.3g}: {table.theorem_one.reason}",
        style="dim",
        highlight=False,
    )


def _show(console: "Console", certificate: "Certificate", distances: "Tensor") -> None:
    """Print certified and attacked accuracy by radius, the medians, and the verdict."""
    from rich.table import Table

    grid = Table("radius", "certified", "by Lipschitz alone", "attack leaves", box=None, header_style="bold")
    right = certificate.correct
    for radius in (0.0, *RADII):
        shares = [(right & (reached >= radius)).double().mean() for reached in _radii(certificate, distances)]
        grid.add_row(f"{radius:.4g}", *(f"{float(share):.1%}" for share in shares))
        if not float(shares[-1]):
            break
    console.print(grid)
    if not bool(right.any()):
        console.print("no sample is classified right: nothing to certify", style="yellow")
        return
    medians = [float(reached[right].median()) for reached in _radii(certificate, distances)]
    console.print(
        f"median over right answers: certified {medians[0]:.4g}, by Lipschitz alone {medians[1]:.4g}, nearest mistake "
        f"found {medians[2]:.4g}; certified/found {medians[0] / medians[2]:.0%}",
        highlight=False,
    )
    if certificate.vacuous:
        console.print(
            "this certificate is vacuous: for most samples it does not cover one gray level of one pixel (1/255). The "
            "table shows which layers are steep; batch norm and layers without spectral norm are the usual ones",
            style="yellow",
        )


def _radii(certificate: "Certificate", distances: "Tensor") -> "tuple[Tensor, Tensor, Tensor]":
    return certificate.radius, certificate.lipschitz_radius, distances


def _save(folder: Path, title: str, certificate: "Certificate", distances: "Tensor", table: "Bounds") -> None:
    """Write a row per sample, a summary and the plot."""
    from dataclasses import asdict

    from lowcurve.files import write_csv, write_json
    from lowcurve.guarantees.curve import curves, draw_curves

    names = ("correct", "margin", "radius", "lipschitz_radius", "attack_distance")
    values = (certificate.correct, certificate.margin, certificate.radius, certificate.lipschitz_radius, distances)
    write_csv(folder / "samples.csv", names, zip(*(value.tolist() for value in values), strict=True))
    right = certificate.correct
    summary: dict[str, Any] = {
        "title": title,
        "method": certificate.method,
        "samples": len(right),
        "accuracy": float(right.double().mean()),
        "vacuous": certificate.vacuous,
        "median": {
            name: _finite(float(value[right].median())) if bool(right.any()) else None
            for name, value in zip(names[2:], values[2:], strict=True)
        },
        "certified_accuracy": {str(radius): certificate.accuracy(radius) for radius in RADII},
        "margin_lipschitz": float(table.margin_lipschitz.max()),
        "margin_hessian": _finite(float(table.margin_hessian.max())),
        "loss_hessian": _finite(table.loss_hessian.value),
        "layers": [{key: _finite(value) for key, value in asdict(row).items()} for row in table.layers],
    }
    write_json(folder / "summary.json", summary)
    draw_curves(curves(certificate, distances), title, folder / "curve")


def _finite(value: Any) -> Any:
    """JSON has no infinity: a bound that does not exist is null."""
    return None if isinstance(value, float) and value in (float("inf"), float("-inf")) else value

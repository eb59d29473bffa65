"""`lowcurve tune`: what does one β for all activations do to a trained network, without training?"""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from lowcurve.commands import options

if TYPE_CHECKING:
    from lowcurve.evaluation.sweep import Point


def tune(
    target: options.Target,
    betas: Annotated[str, typer.Option(help="Values of β, joined by commas.")] = "100,30,10,5,2",
    data: options.Data = None,
    data_dir: options.DataDir = None,
    trust: options.Trust = None,
    radius: Annotated[float, options.above_zero("Radius of the attacks, in pixels of [0, 1].")] = 0.1,
    norm: Annotated[str, typer.Option(help="2 or inf.")] = "2",
    samples: options.Samples = "200",
    steps: Annotated[str, typer.Option(help="Other budgets than the attacks' own: square=1000,pgd=20.")] = "",
    statistics: Annotated[
        int, options.counted(0, "Training samples from which batch norms estimate their statistics anew; 0: keep them.")
    ] = 0,
    output: options.Output = None,
    seed: options.Seed = 0,
) -> None:
    """Sweep a global β without training: accuracy, curvature, PGD, APGD-T and Square beside each other.

    Run it again after a stop and it goes on. To choose a β, use a run that holds out a validation split.
    """
    from lowcurve import text
    from lowcurve.commands.attack import check_names
    from lowcurve.evaluation.subject import find_subject
    from lowcurve.evaluation.sweep import Sweep, sweep
    from lowcurve.files import write_json

    values, length = options.positive_numbers(betas, "--betas"), options.norm_order(norm)
    count, budgets = options.sample_count(samples), options.budgets(steps)
    check_names((), budgets, "gradient")
    found = find_subject(target, data, data_dir, trust)
    folder = found.place(output, "tune")
    settings = Sweep(
        found.dataset.test.subset(count, seed),
        radius,
        steps=budgets,
        norm=length,
        seed=seed,
        statistics=found.dataset.train.subset(statistics, seed) if statistics else None,
        augmentation=found.dataset.augmentation,
        folder=folder,
    )
    points = sweep(found.model, values, settings)
    console = text.console()
    console.print(text.headline(found.name, f" on {found.dataset.title}, {len(settings.test)} samples, no training"))
    console.print(_table(points, settings.attacks, radius, length))
    for line in remarks(points):
        console.print(text.one_line(line))
    if folder:
        about = {"target": found.name, "data": found.dataset.title, "samples": len(settings.test), "radius": radius}
        about |= {"norm": str(length), "statistics": statistics, "seed": seed}
        write_json(folder / "summary.json", {**about, "points": [point.to_dict() for point in points]})
    options.tell_output(console, folder, "the table and the rows of the attacks")


def _table(points: "list[Point]", attacks: tuple[str, ...], radius: float, norm: float) -> Any:
    """Return a row per β; accuracies are in percent."""
    from rich.table import Column, Table

    names = ("β", "clean", "C_margin", "C_loss", *attacks, "worst [95 %]", "flags")
    grid = Table(*(Column(name, overflow="fold") for name in names), box=None, header_style="bold")
    grid.title = f"accuracy (%), under attack within ℓ{'₂' if norm == 2 else '∞'} ≤ {radius:g}; median curvatures"
    for point in points:
        grid.add_row(
            "as it is" if point.beta is None else f"{point.beta:g}",
            f"{100 * point.accuracy:.1f}",
            f"{point.margin_curvature:.3g}",
            f"{point.loss_curvature:.3g}",
            *(f"{100 * point.robust[name]:.1f}" for name in attacks),
            f"{100 * point.robust['worst']:.1f} [{100 * point.low:.0f}–{100 * point.high:.0f}]",
            str(len(point.flags)) if point.flags else "",
        )
    return grid


def remarks(points: "list[Point]") -> list[str]:
    """Say what the sweep shows: whether any β is more robust than the network as it is, and which rows to doubt."""
    first, rest = points[0], points[1:]
    lines = [f"β = {point.beta:g}: check: {flag}" for point in rest for flag in point.flags]
    lines += [f"as it is: check: {flag}" for flag in first.flags]
    best = max(rest, key=lambda point: point.robust["worst"])
    gain = best.robust["worst"] - first.robust["worst"]
    if best.low > first.high:
        lines.append(
            f"β = {best.beta:g} is more robust than the network as it is: {100 * gain:+.1f} points under the worst of "
            "the attacks, beyond both 95 % intervals"
        )
    else:
        lines.append(
            f"No β is more robust than the network as it is beyond chance: β = {best.beta:g} comes out at "
            f"{100 * gain:+.1f} points under the worst of the attacks, and the 95 % intervals overlap"
        )
    return lines

"""`lowcurve attack`: how much accuracy do attacks leave, how far are the nearest mistakes, do explanations hold?"""

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lowcurve.commands import options

if TYPE_CHECKING:
    from rich.console import Console
    from torch import Tensor

    from lowcurve.attacks.table import Evaluation
    from lowcurve.data.dataset import Split
    from lowcurve.evaluation.subject import Subject

EXPLANATION_NOISE = 0.1  # the norm of the noise under which explanations are compared
PICTURES = 8  # samples that are drawn


def attack(
    target: options.Target,
    versus: Annotated[str | None, typer.Option(help="A second run or package:factory to compare with.")] = None,
    data: options.Data = None,
    data_dir: options.DataDir = None,
    trust: options.Trust = None,
    attacks: Annotated[str, typer.Option(help="Names, joined by commas.")] = "pgd,apgd-t,square",
    radii: Annotated[str, typer.Option(help="Radii in pixels of [0, 1], joined by commas.")] = "0.05,0.1,0.15,0.2",
    norm: Annotated[str, typer.Option(help="2 or inf.")] = "2",
    samples: options.Samples = "500",
    steps: Annotated[str, typer.Option(help="Other budgets than the attacks' own: square=1000,pgd=20.")] = "",
    restarts: Annotated[int, options.counted(1, "Runs from different starting points.")] = 1,
    distances: Annotated[int, options.counted(0, "Samples for minimal norms; 0: none.")] = 0,
    saliency: Annotated[int, options.counted(0, "Samples for explanations under noise; 0: none.")] = 0,
    explanation: Annotated[str, typer.Option(help="What explains: gradient, or a method of captum.")] = "gradient",
    batch_size: Annotated[int, options.counted(1, "Samples at a time.")] = 256,
    output: options.Output = None,
    seed: options.Seed = 0,
) -> None:
    """Attack the test samples and report the accuracy that is left; run it again after a stop and it goes on."""
    from lowcurve import text
    from lowcurve.attacks.curves import plot_curves
    from lowcurve.attacks.evaluate import evaluate
    from lowcurve.evaluation.subject import find_subject

    count, length, budgets = options.sample_count(samples), options.norm_order(norm), options.budgets(steps)
    names, distances_at = options.names(attacks, "--attacks"), options.positive_numbers(radii, "--radii")
    check_names(names, budgets, explanation)
    first = find_subject(target, data, data_dir, trust)
    subjects = [first]
    if versus is not None:
        other = find_subject(versus, data or first.dataset.name, data_dir, trust)
        subjects.append(replace(other, name=versus) if other.name == first.name else other)
    split = first.dataset.test.subset(count, seed)
    folder = first.place(output, "attack")
    console = text.console()
    evaluations: dict[str, Evaluation] = {}
    for subject in subjects:
        evaluations[subject.name] = evaluate(
            subject.model, split, names, distances_at, norm=length, steps=budgets, restarts=restarts, seed=seed,
            batch_size=batch_size, folder=folder if subject is first else _beside(folder, subject.name),
        )  # fmt: skip
        console.print(text.headline(subject.name, f" on {first.dataset.title}"))
        _show(console, evaluations[subject.name])
    found = _distances(console, subjects, split, distances, length, seed, folder)
    _explain(console, subjects, split, saliency, explanation, seed, folder)
    if folder:
        plot_curves(evaluations, folder / "curve.png", found)
    options.tell_output(console, folder, "the rows, the table and the pictures")


def _beside(folder: Path | None, name: str) -> Path | None:
    """Return the folder for the rows of the model that is compared with."""
    return folder / re.sub(r"[^\w.+-]+", "-", f"versus-{name}") if folder else None


def check_names(attacks: Iterable[str], budgets: Iterable[str], explanation: str) -> None:
    """Refuse unknown attacks and explanations before anything is loaded."""
    from lowcurve.attacks import ATTACKS
    from lowcurve.attacks.explanations import EXPLANATIONS
    from lowcurve.errors import unknown_name

    for name in (*attacks, *budgets):
        if name not in ATTACKS:
            raise unknown_name("attack", name, ATTACKS)
    if explanation not in EXPLANATIONS:
        raise unknown_name("explanation", explanation, EXPLANATIONS)


def _show(console: "Console", evaluation: "Evaluation") -> None:
    """Print clean accuracy, then a row per attack and a column per radius, with 95 % intervals; then the flags."""
    from rich.table import Table
    from rich.text import Text

    from lowcurve.attacks.table import CLEAN, WORST
    from lowcurve.text import one_line

    def percent(attack: str, eps: float) -> Text:
        cell = evaluation.cell(attack, eps)
        return Text.assemble(f"{cell.accuracy:.1%} ", (f"[{100 * cell.low:.1f}, {100 * cell.high:.1f}]", "dim"))

    norm = "ℓ₂" if evaluation.norm == 2 else "ℓ∞"
    columns = [f"{norm} ≤ {eps:g}" for eps in evaluation.radii]
    grid = Table("accuracy", *columns, box=None, header_style="bold")
    for name in (*evaluation.attacks, *([WORST] if len(evaluation.attacks) > 1 else [])):
        grid.add_row(name, *(percent(name, eps) for eps in evaluation.radii))
    console.print(grid)
    count = evaluation.cell(CLEAN, 0.0).samples
    rest = f", {count} samples, 95 % intervals in brackets"
    console.print(Text.assemble("without attack ", percent(CLEAN, 0.0), rest))
    for flag in evaluation.flags:
        console.print(Text.assemble(("check: ", "yellow"), one_line(flag)))


def _distances(
    console: "Console",
    subjects: "list[Subject]",
    split: "Split",
    count: int,
    norm: float,
    seed: int,
    folder: Path | None,
) -> "dict[str, Tensor]":
    """Estimate minimal norms of the first samples, print their quartiles and write one row per sample."""
    import torch

    from lowcurve.attacks.minimal import minimal_norm
    from lowcurve.files import write_atomic
    from lowcurve.progress import track
    from lowcurve.text import one_line

    if not count:
        return {}
    x, y = split.batch(slice(count))
    found = {
        subject.name: minimal_norm(subject.model, x, y, norm=norm, seed=seed)
        for subject in track(subjects, "minimal norms")
    }
    for name, result in found.items():
        quartiles = result.distance.quantile(torch.tensor([0.25, 0.5, 0.75]), interpolation="lower").tolist()
        console.print(
            f"{one_line(name)}: nearest mistake at {quartiles[1]:.3g} in the median (quartiles "
            f"{quartiles[0]:.3g}, {quartiles[2]:.3g}; upper estimates, {len(x)} samples)"
        )
    if folder:
        lines = ["model,sample,label,distance,withstood"]
        for name, result in found.items():
            table = zip(y.tolist(), result.distance.tolist(), result.withstood.tolist(), strict=True)
            lines += [f"{name},{place},{a},{b!r},{c!r}" for place, (a, b, c) in enumerate(table)]
        write_atomic(folder / "distances.csv", "\n".join(lines) + "\n")
    return {name: result.distance for name, result in found.items()}


def _explain(
    console: "Console",
    subjects: "list[Subject]",
    split: "Split",
    count: int,
    method: str,
    seed: int,
    folder: Path | None,
) -> None:
    """Compare explanations before and after noise of norm 0.1, and draw them side by side."""
    from lowcurve.attacks.explanations import explanation_stability, noisy, plot_explanations
    from lowcurve.files import write_json
    from lowcurve.text import one_line

    if not count:
        return
    x, y = split.batch(slice(count))
    found = {
        subject.name: explanation_stability(subject.model, x, y, radius=EXPLANATION_NOISE, method=method, seed=seed)
        for subject in subjects
    }
    for name, result in found.items():
        console.print(
            f"{one_line(name)}: {method} maps before and after noise of norm {EXPLANATION_NOISE:g}: cosine "
            f"{result.similarity.mean():.3f}, {result.overlap.mean():.0%} of the top features in common"
        )
    if folder:
        plot_explanations(x[:PICTURES], noisy(x, EXPLANATION_NOISE, seed)[:PICTURES], found, folder / "saliency.png")
        first = next(iter(found.values()))
        means = {"similarity": first.similarity.mean().item(), "overlap": first.overlap.mean().item()}
        settings = {"method": method, "radius": EXPLANATION_NOISE, "samples": len(x), "seed": seed}
        write_json(folder / "explanations.json", {**settings, **means})

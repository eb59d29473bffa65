"""`lowcurve measure`: how steep and how curved is a model on its data, and how stable are its gradients?"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lowcurve.commands import options

if TYPE_CHECKING:
    from torch import nn

    from lowcurve.data.dataset import Dataset, Split
    from lowcurve.geometry.dataset import Measurements
    from lowcurve.geometry.stability import Profile

SYMBOLS = {"gradient_norm": "‖∇f‖", "hessian_norm": "‖∇²f‖", "curvature": "C_f"}


def measure(
    target: options.Target,
    data: options.Data = None,
    data_dir: options.DataDir = None,
    trust: options.Trust = None,
    samples: options.Samples = "500",
    tol: Annotated[float, options.above_zero("Relative residual at which a Hessian norm is final.")] = 1e-2,
    max_iterations: Annotated[int, options.counted(1, "Most Hessian-vector products per sample.")] = 30,
    stability: Annotated[int, options.counted(0, "Test samples for gradient stability; 0: none.")] = 64,
    adversarial: Annotated[bool, typer.Option(help="Also search the direction that changes gradients most.")] = False,
    blocks: Annotated[int, options.counted(0, "Test samples for attention and layer norms, block by block.")] = 0,
    output: options.Output = None,
    stand_in: Annotated[
        float | None, options.above_zero("Measure softplus of this β (usually 1000) in place of ReLU and its like.")
    ] = None,
    parquet: Annotated[bool, typer.Option(help="Write one row per sample as parquet instead of CSV.")] = False,
    seed: options.Seed = 0,
) -> None:
    """Measure gradient norm, Hessian norm and curvature on train and test data, their discrepancy, and stability."""
    import warnings
    from contextlib import nullcontext

    from lowcurve import text
    from lowcurve.evaluation.subject import find_subject
    from lowcurve.files import lock
    from lowcurve.geometry.kinks import KinkWarning, kinks, smooth_stand_in

    count = options.sample_count(samples)
    found = find_subject(target, data, data_dir, trust)
    settings = {"count": count, "tol": tol, "max_iterations": max_iterations, "seed": seed}
    folder = found.place(output, "measure")
    example = found.dataset.test.batch(slice(1))[0]
    model = found.model if stand_in is None else smooth_stand_in(found.model, example, stand_in)
    console = text.console()
    with lock(folder) if folder else nullcontext(), warnings.catch_warnings():
        warnings.simplefilter("ignore", KinkWarning)  # a line below says it
        tables = _tables(model, found.dataset, folder, settings)
        console.print(text.headline(found.name, f" on {found.dataset.title}"))
        _show_geometry(console, tables, found.dataset.judged, tol)
        rest = kinks(model, example)
        console.print(_about_kinks(rest, stand_in), style="yellow" if rest else "dim")
        profiles = _profiles(model, found.dataset.test, stability, adversarial, seed)
        _show_stability(console, profiles)
        _show_blocks(console, model, found.dataset.test, blocks, seed)
        if folder:
            about = {"stand_in": stand_in, "kinks": rest, "target": found.name, "data": found.dataset.title}
            _save(folder, tables, profiles, parquet, {**settings, **about})
    options.tell_output(console, folder, "the values of every sample")


def _tables(
    model: "nn.Module", data: "Dataset", folder: Path | None, settings: dict[str, Any]
) -> "dict[str, Measurements]":
    """Measure both splits; with a folder, a file there keeps what is measured so far."""
    from lowcurve.geometry.dataset import measure

    return {
        name: measure(
            model, split, description=f"measuring {'train' if name == 'train' else data.judged} samples",
            unfinished=_unfinished(folder, name) if folder else None, **settings,
        )
        for name, split in (("train", data.train), ("test", data.test))
    }  # fmt: skip


def _unfinished(folder: Path, split: str) -> Path:
    return folder / f".{split}.rows"


def _about_kinks(rest: dict[str, int], stand_in: float | None) -> str:
    """Say what the Hessian was measured of."""
    from lowcurve.geometry.kinks import describe_kinks

    smooth = "" if stand_in is None else f"softplus with β = {stand_in:g} stands in for ReLU and its like; "
    if not rest:
        return f"{smooth}no kinks: the Hessian sees all of the model"
    advice = "" if stand_in is not None else "; --stand-in 1000 measures softplus in place of ReLU and its like"
    return f"{smooth}kinks have no Hessian, so the curvature of {describe_kinks(rest)} is not seen{advice}"


def _show_geometry(console: Any, tables: "dict[str, Measurements]", judged: str, tol: float) -> None:
    """Print a row per measure: mean ± standard error and median on both splits, the tail, the discrepancy."""
    from rich.table import Column, Table

    from lowcurve.geometry.dataset import discrepancy

    train, test = tables["train"], tables["test"]
    columns = ("", "train", "median", judged, "median", "top 1 %", "Δ_tt")
    grid = Table(*(Column(name, overflow="fold") for name in columns), box=None, header_style="bold")
    for name, difference in discrepancy(train, test).items():
        _, margin, key = name.rpartition("margin_")
        s, t = train.summary(name), test.summary(name)
        grid.add_row(
            f"{'margin' if margin else 'loss'} {SYMBOLS[key]}",
            *(_with_error(s.mean, s.standard_error), f"{s.median:.3g}"),
            *(_with_error(t.mean, t.standard_error), f"{t.median:.3g}"),
            f"{t.top_share:.0%}",
            _with_error(difference.by_train, difference.standard_error),
        )
    console.print(grid)
    for name, table in (("train", train), (judged, test)):
        console.print(f"{name}: {len(table)} samples, accuracy {table.accuracy:.2%}{table.caveats(tol)}")
    console.print(
        f"Δ_tt = |{judged} − train| / train. Hessian norms and curvatures are heavy-tailed: top 1 % is the part of the "
        f"{judged} mean that so many samples make; compare medians.",
        style="dim",
    )


def _with_error(value: float, error: float) -> str:
    """Write a value and its error, the latter with one digit.

    >>> _with_error(351.9, 48.2)
    '352±50'
    """
    return f"{value:.3g}±{float(f'{error:.1g}'):g}"


def _profiles(model: "nn.Module", split: "Split", count: int, adversarial: bool, seed: int) -> "dict[str, Profile]":
    """Measure gradient stability in random and, if asked, in adversarial directions."""
    from lowcurve.geometry.stability import DIRECTIONS, gradient_stability
    from lowcurve.progress import track

    if not count:
        return {}
    x, y = split.subset(count, seed).batch(slice(None))
    chosen = DIRECTIONS if adversarial else DIRECTIONS[:1]
    return {
        direction: gradient_stability(model, x, y, samples=2, seed=seed, direction=direction)
        for direction in track(chosen, "gradient stability")
    }


def _show_stability(console: Any, profiles: "dict[str, Profile]") -> None:
    """Print the relative change of the gradient per distance, and its predictions, as mean and as medians.

    The mean of r·C_f is there for the mean change; that of e^(r·C_f) − 1 overflows early, so it is a median, and so is
    the r·C_f to compare it with.
    """
    from rich.table import Table
    from rich.text import Text

    if not profiles:
        return
    predictions = ("mean\nr·C_f", "median\nr·C_f", "median\ne^(r·C_f) − 1")
    grid = Table("‖ε‖", *profiles, *predictions, box=None, header_style="bold")
    first = next(iter(profiles.values()))
    medians = [curve.nanmedian(dim=1).values for curve in (first.quadratic, first.sharp)]
    for row, radius in enumerate(first.radii.tolist()):
        measured = [_with_error(float(profile.mean[row]), float(profile.spread[row])) for profile in profiles.values()]
        predicted = [f"{curve[row]:.4g}" for curve in (first.predicted, *medians)]
        grid.add_row(f"{radius:.4f}", *measured, *predicted)
    formula = " ‖∇f(x + ε) − ∇f(x)‖ / ‖∇f(x)‖ (mean±spread)"
    console.print(Text.assemble("\n", ("gradient stability", "bold"), formula), grid, sep="\n")


def _show_blocks(console: Any, model: "nn.Module", split: "Split", count: int, seed: int) -> None:
    """Print the slope and the curvature of each attention and each norm that works sample by sample."""
    from lowcurve import text
    from lowcurve.geometry.blocks import block_geometry

    if not count:
        return
    found = block_geometry(model, *split.subset(count, seed).batch(slice(None)), of="margin", tol=0.05, seed=seed)
    console.print(
        "\nslopes and curvature, block by block" if len(found) else "\nno attention, no layer norm", style="bold"
    )
    for line in str(found).splitlines() if len(found) else ():
        console.print(text.one_line(line), soft_wrap=True)


def _save(
    folder: Path,
    tables: "dict[str, Measurements]",
    profiles: "dict[str, Profile]",
    parquet: bool,
    settings: dict[str, Any],
) -> None:
    """Write one row per sample, and what was printed as JSON."""
    from lowcurve.files import write_json

    for name, table in tables.items():
        if parquet:
            table.to_parquet(folder / f"{name}.parquet")
        else:
            table.to_csv(folder / f"{name}.csv")
    content = {
        "settings": settings,
        "geometry": {name: table.to_dict() for name, table in tables.items()},
        "stability": {name: profile.to_dict() for name, profile in profiles.items()},
    }
    write_json(folder / "summary.json", content)
    for name in tables:
        _unfinished(folder, name).unlink(missing_ok=True)

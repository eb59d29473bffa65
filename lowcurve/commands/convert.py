"""`lowcurve convert`: what would surgery do to a model, and what does it change?"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lowcurve.commands import options

if TYPE_CHECKING:
    from rich.console import Console

    from lowcurve.surgery.report import ConversionReport


def convert(
    target: options.Target,
    data: Annotated[str | None, typer.Option(help="Measure on the test split of this data set.")] = None,
    data_dir: options.DataDir = None,
    trust: options.Trust = None,
    input_size: Annotated[
        str | None, typer.Option(help="Without --data: shape of one input, such as 3,32,32; pixels are random.")
    ] = None,
    samples: options.Samples = "64",
    activation: Annotated[bool, typer.Option(help="Replace activations.")] = True,
    smooth: Annotated[
        str,
        typer.Option(help="What becomes of GELU, SiLU and Mish: replace, keep, or learn (their own shape with a β)."),
    ] = "replace",
    batchnorm: Annotated[bool, typer.Option(help="Replace batch norms.")] = True,
    spectral: Annotated[bool, typer.Option(help="Normalize linear and convolution layers.")] = True,
    init_beta: Annotated[float, options.above_zero("β to start from.")] = 5.0,
    init_gamma: Annotated[float, options.above_zero("γ to start from.")] = 10.0,
    stand_in: Annotated[float, options.above_zero("β of the softplus that is measured in place of kinks.")] = 1000.0,
    last_layer: Annotated[str, typer.Option(help="free, or unit: the layer of the logits has unit norm too.")] = "free",
    skip: Annotated[
        list[str] | None, typer.Option(help="Leave the module of this name alone; may be repeated.")
    ] = None,
) -> None:
    """Show what surgery would do to a model, layer by layer, and measure it before and after."""
    from lowcurve import text
    from lowcurve.errors import UserError
    from lowcurve.surgery.convert import convert as convert_model

    count = options.sample_count(samples)
    options.choose(("free", "unit"), last_layer, "--last-layer")
    shape = None if input_size is None else options.whole_numbers(input_size, "--input-size", least=1)
    if data is not None and shape is not None:
        raise UserError("expected --data or --input-size, got both; leave one out")
    model, x, y = _load(target, data, data_dir, shape, count, trust)
    options.choose(("replace", "keep", "learn"), smooth, "--smooth")
    how = smooth if activation and smooth != "replace" else activation
    chosen: dict[str, Any] = {"activation": how, "batchnorm": batchnorm, "spectral": spectral}
    chosen |= {"init_beta": init_beta, "init_gamma": init_gamma, "skip": skip or (), "last_layer": last_layer}
    low, report = convert_model(model, x[:2], **chosen)
    console = text.console()
    _show_changes(console, report)
    _show_measures(console, model, low, (x, y), stand_in)


def _show_changes(console: "Console", report: "ConversionReport") -> None:
    """Print a row per site, and the counts."""
    from rich.table import Table

    sites = Table("where", "was", "now", "note", box=None, header_style="bold")
    for row in report.rows():
        sites.add_row(*row, style="dim" if row[2] == "left" else None)
    console.print(sites)
    console.print(f"\n{report.summary()}\n", style="bold")


def _show_measures(console: "Console", model: Any, low: Any, samples: Any, stand_in: float) -> None:
    """Print what the models measure before and after, and between them softplus in place of kinks."""
    from rich.table import Table

    from lowcurve.geometry.compare import compare
    from lowcurve.geometry.kinks import describe_kinks, kinks

    x, y = samples
    found = kinks(model, x[:1])
    columns = ("before", *([f"β = {stand_in:g} for kinks"] if found else []), "after")
    measured = Table(f"on {len(x)} inputs", *columns, box=None, header_style="bold")
    for line in compare(model, low, x, y, stand_in):
        smooth = [] if not found else [""] if line.stand_in is None else [f"{line.stand_in:.4g}"]
        measured.add_row(line.quantity, f"{line.before:.4g}", *smooth, f"{line.after:.4g}")
    console.print(measured)
    if found:
        console.print(
            f"kinks have no Hessian, so the curvature of {describe_kinks(found)} is not seen in the first column; the "
            "second has softplus in place of ReLU and its like: compare it with the last",
            style="yellow",
        )


def _load(
    target: str,
    data: str | None,
    data_dir: Path | None,
    input_size: tuple[int, ...] | None,
    count: int | float | None,
    trust: str | None,
) -> Any:
    """Return the model, inputs, and labels where a data set gives them."""
    import torch

    from lowcurve import checks
    from lowcurve.errors import UserError
    from lowcurve.evaluation.subject import check_model, find_subject
    from lowcurve.factory import load_factory
    from lowcurve.random import generator

    if input_size is None:
        found = find_subject(target, data, data_dir, trust)
        return found.model, *found.dataset.test.subset(count).batch(slice(None))
    if not isinstance(count, int):
        raise UserError(f"expected --samples as a number where pixels are random (--input-size), got {count or 'all'}")
    checks.size(**{"--input-size": input_size})
    model, x = load_factory(target, input_size).eval(), torch.rand(count, *input_size, generator=generator(0))
    check_model(model, x[:2])
    return model, x, None

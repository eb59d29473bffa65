"""How is a robustness claim made to RobustBench? A file as its `model_info` has it, and a model as its tools take it.

RobustBench itself is not needed. A claim is made only of the whole standard suite at its own budgets.
"""

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from lowcurve import checks
from lowcurve.attacks import ATTACKS, SUITE
from lowcurve.attacks.table import CLEAN, WORST, Evaluation
from lowcurve.errors import UserError
from lowcurve.files import make_folder, write_json
from lowcurve.outputs import returning_logits
from lowcurve.surgery.fold import fold

_EXPECTED = 10_000  # samples on which RobustBench evaluates on CIFAR


def claim(
    evaluation: Evaluation,
    *,
    dataset: str,
    architecture: str,
    name: str,
    authors: str,
    link: str,
    venue: str,
    additional_data: bool = False,
    number_forward_passes: int = 1,
    eps: float | None = None,
) -> dict[str, Any]:
    """Return the fields of RobustBench's `model_info` for an evaluation by `auto`, or by its four attacks.

    `eps` is the radius of the claim, where the evaluation has several. Accuracies are percentages. Flags of the
    evaluation make the claim `unreliable`; the footnote says who attacked and how many samples.
    """
    checks.flag(additional_data=additional_data)
    checks.whole(1, number_forward_passes=number_forward_passes)
    if eps is None and len(evaluation.radii) > 1:
        raise UserError(f"expected the radius of the claim, one of {list(evaluation.radii)}; pass eps")
    radius = evaluation.radii[0] if eps is None else eps
    if radius not in evaluation.radii:
        raise UserError(f"expected eps as one of the radii attacked, {list(evaluation.radii)}, got {radius}")
    _refuse_less_than_the_suite(evaluation)
    robust = evaluation.cell("auto" if "auto" in evaluation.attacks else WORST, radius)
    clean = evaluation.accuracy(CLEAN, 0.0)
    notes = [f"Attacked by lowcurve's implementation of AutoAttack's standard suite on {robust.samples} test samples."]
    if robust.samples < _EXPECTED:
        notes.append(f"The 95 % interval is {100 * robust.low:.2f} to {100 * robust.high:.2f}.")
    return {
        "link": link,
        "name": name,
        "authors": authors,
        "additional_data": additional_data,
        "number_forward_passes": number_forward_passes,
        "dataset": dataset,
        "venue": venue,
        "architecture": architecture,
        "eps": _spelled(radius),
        "clean_acc": f"{100 * clean:.2f}",
        "reported": f"{100 * robust.accuracy:.2f}",
        "autoattack_acc": f"{100 * robust.accuracy:.2f}",
        "footnote": " ".join([*notes, *evaluation.flags]),
        "unreliable": bool(evaluation.flags),
    }


def write_claim(content: dict[str, Any], folder: Path, model_id: str, norm: float) -> Path:
    """Write a claim to its place in RobustBench's tree, FOLDER/DATASET/L2 or Linf/MODEL_ID.json; return that."""
    for part in (model_id, str(content["dataset"])):
        if not part or not set(part) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"):
            raise UserError(f"expected letters, digits, _ and - for a file's name, got {part!r}")
    path = make_folder(folder / str(content["dataset"]) / ("L2" if norm == 2 else "Linf")) / f"{model_id}.json"
    write_json(path, content)
    return path


def benchmark_model(model: nn.Module, x: Tensor) -> nn.Module:
    """Return a plain torch.nn copy in eval mode that maps pixels to logits, as `robustbench.benchmark` takes it.

    `x` is a batch for it, of pixels in [0, 1]. The copy is folded, so that it runs, pickles and loads where lowcurve is
    not installed.
    """
    checks.usable(model)
    checks.samples(x)
    return fold(returning_logits(model, x)).eval()


def _refuse_less_than_the_suite(evaluation: Evaluation) -> None:
    """Refuse an evaluation with fewer attacks, or with fewer steps, than the standard suite."""
    needed = ("auto",) if "auto" in evaluation.attacks else SUITE
    steps = {row.attack: row.steps for row in evaluation.rows}
    short = [name for name in needed if steps.get(name, 0) < ATTACKS[name].steps]
    if short:
        raise UserError(
            f"a claim needs the standard suite at its own budgets, {ATTACKS[short[0]].steps} steps of {short[0]}, got "
            f"{steps.get(short[0], 'none')}; evaluate with attacks=['auto']"
        )


def _spelled(radius: float) -> str:
    """Write a radius as RobustBench does.

    >>> _spelled(8 / 255), _spelled(0.5)
    ('8/255', '0.5')
    """
    levels = round(radius * 255)
    return f"{levels}/255" if levels and abs(radius * 255 - levels) < 1e-6 and radius < 0.2 else f"{radius:g}"

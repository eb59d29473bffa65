"""Figure of saliency maps (not in the paper): does the loss's input gradient survive a little noise?"""

from collections.abc import Mapping
from typing import Any

from lowcurve.experiments.claims import Claim
from lowcurve.experiments.experiment import Column, Experiment, rows


def extend(measured: Mapping[str, Mapping[int, Mapping[str, Any]]]) -> dict[str, Any]:
    """Put the pictures of the first seed side by side; data sets that may not be copied keep theirs."""
    shown = {row: next(iter(seeds.values())) for row, seeds in measured.items() if seeds}
    first = next(iter(shown.values()), {})
    if not first.get("saliency_images"):
        return {}
    table = {
        "labels": first["saliency_labels"],
        "images": first["saliency_images"],
        "radius": first["saliency_radius"],
        "rows": [
            {
                "label": row.label,
                "maps": shown[row.key]["saliency_maps"],
                "noisy": shown[row.key]["saliency_noisy"],
                "cosine": shown[row.key]["saliency_cosine"],
            }
            for row in FIGURE.rows
            if row.key in shown
        ],
    }
    return {"extra": {"saliency": table}}


FIGURE = Experiment(
    name="figure-saliency",
    title="Saliency maps before and after noise",
    source="Not in the paper; Section 4.1 is the reason to expect it",
    data="cifar100",
    model="resnet18",
    rows=rows("standard", "lcnn", "gradreg", "lcnn+gradreg"),
    measurements=("saliency",),
    columns=(Column("saliency_cosine", "cosine of gradients", 3, "high"),),
    claims=(
        Claim(
            "LCNN + GradReg's maps change less than the standard network's",
            ("lcnn+gradreg", "saliency_cosine"),
            ("standard", "saliency_cosine"),
            "difference",
            ">=",
            0.0,
            "project",
        ),
    ),
    extend=extend,
)

"""What does a folder for a model hub say of its model? A card, `README.md`: front matter for machines, and text."""

import statistics
from collections import Counter

from torch import nn

import lowcurve
from lowcurve.layers.normalized import spectral_of
from lowcurve.layers.traits import learned_logs
from lowcurve.surgery.record import FOLD, conversions
from lowcurve.text import markdown, markdown_code

CARD = "README.md"
_FRONT = """---
library_name: lowcurve
pipeline_tag: image-classification
tags:
- lowcurve
- low-curvature
- pytorch
---
"""


def model_card(model: nn.Module, name: str) -> str:
    """Return the card of a model as `save` finds it; what was measured is for its author to add."""
    parameters = sum(parameter.numel() for parameter in model.parameters())
    lines = [
        _FRONT,
        f"# {markdown(name)}",
        "",
        f"{markdown_code(type(model).__name__)}, {parameters:,} parameters, {_surgery(model)}.",
        "",
        *(f"- {line}" for line in _layers(model)),
        "",
        "Inputs are pixels in [0, 1] unless the network says otherwise; normalization, if any, is inside the model.",
        "",
        "## Load it",
        "",
        "The folder holds weights (`model.safetensors`) and how they were made (`model.json`), no code. Pass the "
        "original network; surgery is repeated on a copy of it:",
        "",
        "```python",
        "import lowcurve as lc",
        "",
        "model = lc.load(FOLDER, model=network)",
        "```",
        "",
        "## Measured",
        "",
        "Nothing yet. Accuracy says nothing about robustness: see `lowcurve measure`, `lowcurve attack --attacks auto` "
        "and `lowcurve certify`.",
        "",
        f"Made with lowcurve {lowcurve.__version__}.",
    ]
    return "\n".join(lines) + "\n"


def _surgery(model: nn.Module) -> str:
    """Say in a few words what was done to the network."""
    notes = conversions(model)
    done = ["folded to plain torch.nn" if FOLD in note else "converted to low curvature" for note in notes]
    return ", then ".join(done) or "as its author made it"


def _layers(model: nn.Module) -> list[str]:
    """Describe what bounds the network's curvature."""
    lines = []
    for kind, symbol in (("beta", "β"), ("gamma", "γ")):
        values = [float(value) for log in learned_logs(model, kind).values() for value in log.detach().exp().flatten()]
        if values:
            median, low, high = statistics.median(values), min(values), max(values)
            lines.append(f"{len(values)} learned {symbol}, {low:.3g} to {high:.3g}, median {median:.3g}")
    normalized = Counter(type(m).__bases__[0].__name__ for m in model.modules() if spectral_of(m) is not None)
    lines += [f"{count} {kind} of unit operator norm" for kind, count in normalized.items()]
    return lines

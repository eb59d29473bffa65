"""Figure of saliency maps (not in the paper): does the loss's input gradient survive a little noise?"""

from typing import Any

from lowcurve.evaluation.measurement import PER_SAMPLE, Measurement, Settings, Values, written
from lowcurve.evaluation.subject import SEED, Subject
from lowcurve.experiments.claims import OURS, Claim
from lowcurve.experiments.experiment import Column, Experiment, Measured, rows

CAPTION = (
    "Gradient of the loss in the input: left at the image itself, right after noise of norm {radius}. Red raises the "
    "loss, blue lowers it; each map has its own scale. The cosine compares the two over all samples measured: 1 means "
    "that the noise changed nothing."
)


def measure(subject: Subject, settings: Settings) -> Values:
    """Compare the loss's input gradient at each sample with that after noise; keep the first maps as pictures."""
    import torch
    from torch.nn import functional as F

    from lowcurve.data import DATASETS
    from lowcurve.observe import observing
    from lowcurve.random import generator

    x, y = subject.samples(settings["samples"])
    noise = torch.randn(x.shape, generator=generator(SEED)).flatten(1)
    noisy = x + (settings["radius"] * F.normalize(noise)).view_as(x)
    with observing(subject.model):
        maps = [_gradient(subject.model, inputs, y) for inputs in (x, noisy)]
    cosines = F.cosine_similarity(maps[0].flatten(1), maps[1].flatten(1))
    # Pictures are kept of data that comes with a package; other images are not ours to copy into results.
    source = DATASETS.get(subject.dataset.name)
    shown = range(min(settings["shown"], len(x)) if source and source.read else 0)
    return {
        "saliency_cosine": cosines.nanmean().item(),
        PER_SAMPLE: {"saliency_cosine": written(cosines)},
        "saliency_radius": settings["radius"],
        "saliency_labels": [subject.dataset.class_names[int(y[index])] for index in shown],
        "saliency_images": [x[index].mean(0).tolist() for index in shown],
        "saliency_maps": [_scaled(maps[0][index]) for index in shown],
        "saliency_noisy": [_scaled(maps[1][index]) for index in shown],
    }


def _gradient(model: Any, x: Any, y: Any) -> Any:
    import torch

    from lowcurve.geometry.functions import FUNCTIONS

    inputs = x.detach().requires_grad_()
    return torch.autograd.grad(FUNCTIONS["loss"](model(inputs), y).sum(), inputs)[0]


def _scaled(gradient: Any) -> list[list[float]]:
    """Sum over channels and divide by the largest entry; three digits are enough for a picture."""
    flat = gradient.sum(0)
    return [[round(value, 3) for value in row] for row in (flat / flat.abs().max().clamp_min(1e-30)).tolist()]


def extend(measured: Measured) -> dict[str, Any]:
    """Put the pictures of the first seed side by side; data sets that may not be copied keep theirs."""
    shown = {row: next(iter(seeds.values())) for row, seeds in measured.items() if seeds}
    first = next(iter(shown.values()), {})
    if not first.get("saliency_images"):
        return {}
    inputs = {"label": "Input", "note": "", "signed": False, "cells": [[image] for image in first["saliency_images"]]}
    maps = [
        {
            "label": row.label,
            "note": f"mean cosine {values['saliency_cosine']:.3f}",
            "signed": True,
            "cells": list(map(list, zip(values["saliency_maps"], values["saliency_noisy"], strict=True))),
        }
        for row in FIGURE.rows
        if (values := shown.get(row.key))
    ]
    caption = CAPTION.format(radius=first["saliency_radius"])
    return {"extra": {"images": {"labels": first["saliency_labels"], "rows": [inputs, *maps], "caption": caption}}}


SALIENCY = Measurement("saliency", measure, lambda samples: {"samples": samples.stability, "radius": 0.1, "shown": 4})
FIGURE = Experiment(
    name="figure-saliency",
    title="Saliency maps before and after noise",
    source="Not in the paper; Section 4.1 is the reason to expect it",
    rows=rows("standard", "lcnn", "gradreg", "lcnn+gradreg"),
    measurements=(SALIENCY,),
    columns=(Column("saliency_cosine", "cosine of gradients", 3, "high"),),
    claims=(
        Claim(
            "LCNN + GradReg's maps change less than the standard network's",
            "saliency_cosine[lcnn+gradreg] − saliency_cosine[standard] >= 0",
            OURS,
        ),
    ),
    extend=extend,
)
EXPERIMENTS = (FIGURE,)

"""Small made-up results, for tests of how results are shown."""

from lowcurve.experiments import EXPERIMENTS
from lowcurve.experiments.results import Result, tabulate


def kept(curvatures: str, right: int, wrong: int) -> dict[str, tuple[str, str]]:
    """Return what is kept of samples whose means are those of a run below."""
    return {"curvature": ("geometry", curvatures), "accuracy": ("geometry", "bits:" + "1" * right + "0" * wrong)}


MEASURED = {
    "standard": {
        0: {
            "gradient_norm": 2.0,
            "hessian_norm": 200.0,
            "curvature": 100.0,
            "accuracy": 0.90,
            "margin_curvature": 50.0,
            "per_sample": kept("80 120 100 100", 18, 2),
        },
        1: {
            "gradient_norm": 3.0,
            "hessian_norm": 300.0,
            "curvature": 120.0,
            "accuracy": 0.92,
            "margin_curvature": 60.0,
            "per_sample": kept("120 100 140 120", 23, 2),
        },
    },
    "lcnn": {
        0: {
            "gradient_norm": 2.5,
            "hessian_norm": 30.0,
            "curvature": 10.0,
            "accuracy": 0.89,
            "per_sample": kept("8 12 10 10", 89, 11),
        },
    },
}
RUNS = {
    "standard": ["digits-resnet18-standard-s0-00000000", "digits-resnet18-standard-s1-11111111"],
    "lcnn": ["digits-resnet18-lcnn-s0-22222222"],
}
LINE = {"row": "lcnn", "label": "LCNN", "x": [0.001, 0.01, 0.1], "y": [0.01, 0.1, 1.0]}
CURVE = {
    "x_label": "noise",
    "y_label": "change",
    "log": True,
    "lines": [{**LINE, "low": [0.005, 0.1, 1.0], "high": [0.02, 0.1, 1.0], "predicted": [0.02, 0.2, 2.0]}],
}
NET = {"areas": ["M0 0L10 0L10 10Z"] * 6, "boundary": "M0 5L10 5"}
OUTLINES = {
    "nets": [{"label": f"β = {beta}", "order": beta, **NET} for beta in (1, 5, 1000)],
    "start": 0,
    "width": 540,
    "height": 360,
    "points": [[10.0, 10.0, 0], [20.0, 20.0, 1]],
}
MAPS = [[[0.5, -1.0], [0.0, 1.0]]]
IMAGES = {
    "labels": ["3"],
    "rows": [
        {"label": "Input", "note": "", "signed": False, "cells": [[[[0.0, 1.0], [0.5, 0.2]]]]},
        {"label": "LCNN", "note": "mean cosine 0.900", "signed": True, "cells": [[*MAPS, *MAPS]]},
    ],
    "caption": "Gradients before and after noise.",
}
OLD = {  # as earlier versions wrote it
    "moons": OUTLINES,
    "saliency": {
        "labels": ["3"],
        "images": [[[0.0, 1.0], [0.5, 0.2]]],
        "radius": 0.1,
        "rows": [{"label": "LCNN", "maps": MAPS, "noisy": MAPS, "cosine": 0.9}],
    },
}


def example(**changes) -> Result:
    """Return a table with two rows measured, and whatever is changed."""
    table = tabulate(EXPERIMENTS["table-geometry"], MEASURED, RUNS)
    fields = {
        "experiment": "table-geometry",
        "title": "Model geometry",
        "source": "Table 1",
        "preset": "digits",
        "setting": "Digits 8×8, ResNet-18 of width 8, 10 epochs",
        "command": "lowcurve reproduce table-geometry --preset digits",
        "created": "2026-01-01T00:00:00+00:00",
        "environment": {"lowcurve": "0", "torch": "2", "python": "3"},
        "notes": ["A note with <angle brackets> & more."],
    }
    return Result(**{**table, **fields, **changes})


def records() -> dict[str, dict]:
    """Return records of the runs that the table rests on."""
    return {
        name: {
            "name": name,
            "setting": "Digits 8×8",
            "method": "lcnn",
            "seed": 0,
            "command": f"lowcurve train results/digits/recipes/{name}.toml",
            "recipe": '[train]\nepochs = 10\n# <script>alert("no")</script>\n',
            "environment": {"torch": "2", "cores": 2, "devices": [], "data": {"title": "Digits"}},
            "epochs": [],
            "beta": {"2": 4.0, "5": 3.0} if "lcnn" in name else {},
            "gamma": {"1": 9.0} if "lcnn" in name else {},
            "measurements": {
                "geometry": {"settings": {"samples": 8, "of": ["loss"]}, "seed": 0, "seconds": 1.0, "values": {}}
            },
        }
        for names in RUNS.values()
        for name in names
    }

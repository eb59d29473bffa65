"""Which recipes have a name? DATA-MODEL-METHOD, for every data set, model and method: the paper's settings.

`cifar100-resnet18-lcnn+gradreg`, also written with `-` for `+`; `-released` at the end takes the coefficients of the
released code. What a data set or one recipe needs besides is in `SETTINGS`; all else is the default of
`training.config`.
"""

from collections.abc import Mapping
from typing import Any

from lowcurve.data import DATASETS
from lowcurve.errors import UserError, unknown_name
from lowcurve.methods import METHODS, find_method
from lowcurve.models import MODELS

Tree = Mapping[str, Mapping[str, Any]]

SETTINGS: dict[str, Tree] = {
    "svhn": {"data": {"augmentation": ["crop"]}},  # the released code also flips, which makes other digits of some
    "digits": {"model": {"width": 8}, "train": {"epochs": 20, "batch_size": 64, "lr": 0.05}},  # minutes on a laptop
    "digits-convnet-certified": {
        "model": {"width": 16},
        "train": {"epochs": 30, "batch_size": 64, "lr": 0.1, "clip_gradient": 1.0},
    },
}

# Endings of a name. β falls to 0.2 within an epoch with the released code's λ, γ to 1 within 230 steps; which pair made
# the paper's tables cannot be told.
ENDINGS: dict[str, Tree] = {"-released": {"method": {"lambda_beta": 1e-2, "lambda_gamma": 1e-2}}}


def named_recipe(name: str) -> dict[str, Any] | None:
    """Return the tree of a recipe by its name; None where it does not begin with a data set and a model.

    >>> named_recipe("cifar10-resnet18-lcnn+gradreg")["method"]
    {'name': 'lcnn+gradreg'}
    """
    ending = next((ending for ending in ENDINGS if name.endswith(ending)), "")
    body = name.removesuffix(ending)
    parts = ((data, model) for data in DATASETS for model in MODELS if body.startswith(f"{data}-{model}-"))
    data, model = next(parts, ("", ""))
    if not data:
        return None
    tree: dict[str, Any] = {"name": name, "data": {"name": data}, "model": {"name": model}}
    tree["method"] = {"name": _method(body.removeprefix(f"{data}-{model}-"))}
    for changes in (SETTINGS.get(data, {}), SETTINGS.get(name, {}), ENDINGS.get(ending, {})):
        for section, values in changes.items():
            tree[section] = {**tree.get(section, {}), **values}
    return tree


def _method(name: str) -> str:
    """Return the method that a recipe's name means; `-` stands for `+` in those of the paper's tables."""
    spelled = {method.replace("+", "-"): method for method in METHODS}
    if name in spelled:
        return spelled[name]
    try:
        find_method(name)
    except UserError:
        raise unknown_name("method", name, METHODS) from None
    return name

"""Where does a model bend without a Hessian? At the kinks of ReLU, max pooling and the like, unseen by `curvature`.

Almost everywhere such a model is as smooth as its other parts, so its Hessian says nothing of how much it bends in all.
A stand-in with softplus of a large β in place of rectifiers is nearly the same function (off by log(2)/β per
activation), and its Hessian sees them.
"""

import copy
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lowcurve.errors import UserError
from lowcurve.surgery.convert import replace_rectifiers
from lowcurve.surgery.probe import run_once
from lowcurve.surgery.rewrite import spelled

STAND_IN = 1000.0  # β of the softplus through which a network with kinks is measured: the paper's baseline


class KinkWarning(UserWarning):
    """A Hessian was measured of a model that has none at its kinks."""


_MODULES: tuple[type[nn.Module], ...] = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.RReLU, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.Threshold),
    *(nn.Softshrink, nn.Hardshrink, nn.SELU, nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d),
    *(nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d),
)
_FUNCTIONS: set[Callable[..., Any]] = {
    *(F.relu, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_, F.relu6, F.leaky_relu, F.leaky_relu_, F.prelu),
    *(torch.prelu, Tensor.prelu, F.rrelu, F.rrelu_, torch.rrelu, F.hardtanh, F.hardtanh_, F.hardswish, F.hardsigmoid),
    *(F.threshold, F.softshrink, F.hardshrink, Tensor.hardshrink, F.selu, torch.selu, torch.selu_),
    *(F.max_pool1d, F.max_pool2d, F.max_pool3d, torch.max_pool1d, torch.max_pool2d, torch.max_pool3d),
    *(F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d),
    *(torch.abs, Tensor.abs, Tensor.abs_, Tensor.__abs__, torch.max, Tensor.max, torch.amax, Tensor.amax),
    *(torch.min, Tensor.min, torch.amin, Tensor.amin, torch.maximum, Tensor.maximum, torch.minimum, Tensor.minimum),
    *(torch.clamp, Tensor.clamp, Tensor.clamp_, torch.clamp_min, Tensor.clamp_min, Tensor.clamp_min_),
    *(torch.clamp_max, Tensor.clamp_max, Tensor.clamp_max_, torch.clip, Tensor.clip, torch.fmax, torch.fmin),
}


def kinks(model: nn.Module, x: Tensor) -> dict[str, int]:
    """Return how often a forward at `x` applies each operation that is not differentiable everywhere.

    >>> kinks(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Tanh(), nn.ReLU()), torch.zeros(1, 2))
    {'ReLU': 2}
    """
    found: Counter[str] = Counter()
    for module, record in run_once(model, x).records.items():
        if isinstance(module, _MODULES) or (isinstance(module, nn.ELU) and module.alpha != 1):
            found[type(module).__name__] += record.invocations
        elif not type(module).__module__.startswith(("torch.nn.", "lowcurve.layers.")):
            for function, calls in record.functions.items():
                if function in _FUNCTIONS:
                    found[spelled(function)] += len(calls) * record.invocations
    return dict(found)


def describe_kinks(found: dict[str, int]) -> str:
    """Return the kinks in words.

    >>> describe_kinks({"ReLU": 17, "MaxPool2d": 1})
    '17 ReLU, 1 MaxPool2d'
    """
    return ", ".join(f"{count} {name}" for name, count in found.items())


def warn_of_kinks(found: dict[str, int], stand_in: float | None) -> None:
    """Warn where the model that is measured has kinks."""
    if found:
        remedy = "no softplus stands in for these" if stand_in else "stand_in=1000.0 measures softplus in their place"
        warnings.warn(
            f"the model has kinks, which have no Hessian: {describe_kinks(found)}. What is measured is the curvature "
            f"of its smooth parts alone; {remedy}",
            KinkWarning,
            stacklevel=3,
        )


def smooth_stand_in(model: nn.Module, x: Tensor, beta: float) -> nn.Module:
    """Return a copy of `model` with softplus of this β for ReLU, LeakyReLU, ReLU6 and Hardtanh; all else stays."""
    if not 0 < beta < float("inf"):
        raise UserError(f"expected a stand-in with 0 < β < ∞, got {beta}; 1000 is usual")
    return replace_rectifiers(copy.deepcopy(model), x[:1], beta)

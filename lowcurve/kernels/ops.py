"""Which operators are there, and who computes them? PyTorch's dispatcher decides, by the device of the tensors.

Each operator is one pass or two over memory where a device has kernels for it: plain PyTorch on every device, compiled
loops on CPUs, Triton on GPUs. To add a device, write a module with these functions and `register` it.

The functions have no gradient of their own: `softplus.py`, `norm.py`, `affine.py`, `unit.py` and `scales.py` beside
this file differentiate.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from lowcurve.kernels import cpu, gpu, reference

_SCHEMAS = {
    "softplus": "(Tensor x, Tensor log_beta, float shift) -> Tensor",
    "softplus_gradient": "(Tensor grad, Tensor y, Tensor log_beta, float shift, bool with_beta) -> (Tensor, Tensor?)",
    "softplus_second": (
        "(Tensor outer, Tensor grad, Tensor y, Tensor log_beta, float shift) -> (Tensor, Tensor, Tensor)"
    ),
    "norm": (
        "(Tensor x, Tensor? weight, Tensor? bias, Tensor(a!)? running_mean, Tensor(b!)? running_var, float momentum, "
        "float eps, Tensor? other, Tensor? log_beta, float factor, float shift) -> (Tensor, Tensor, Tensor)"
    ),
    "norm_gradient": (
        "(Tensor grad, Tensor? y, Tensor x, Tensor? weight, Tensor mean, Tensor invstd, float eps, Tensor? log_beta, "
        "float factor, float shift, bool with_other, bool with_beta) -> (Tensor, Tensor?, Tensor, Tensor, Tensor?)"
    ),
    "norm_second": (
        "(Tensor outer, Tensor? outer_other, Tensor grad, Tensor? y, Tensor x, Tensor? weight, Tensor mean, "
        "Tensor invstd, Tensor in_weight, Tensor in_bias, float eps, Tensor? log_beta, float factor, float shift) "
        "-> (Tensor, Tensor?, Tensor, Tensor, Tensor?)"
    ),
    "affine": (
        "(Tensor x, Tensor? weight, Tensor? bias, Tensor mean, Tensor var, float eps, Tensor? other, Tensor? log_beta, "
        "float factor, float shift) -> Tensor"
    ),
    "affine_gradient": (
        "(Tensor grad, Tensor? y, Tensor? weight, Tensor var, float eps, Tensor? log_beta, float factor, float shift, "
        "bool with_other) -> (Tensor, Tensor?)"
    ),
    "affine_second": (
        "(Tensor outer, Tensor? outer_other, Tensor grad, Tensor? y, Tensor? weight, Tensor var, float eps, "
        "Tensor? log_beta, float factor, float shift) -> (Tensor, Tensor?)"
    ),
    "scales": (
        "(Tensor[] variances, Tensor?[] weights, Tensor?[] biases, Tensor[] log_gammas, float[] eps) "
        "-> (Tensor[], Tensor[], Tensor, Tensor)"
    ),
    "scales_gradient": (
        "(Tensor[] grads, Tensor[] bias_grads, Tensor?[] weights, Tensor?[] biases, Tensor gains, Tensor factors) "
        "-> (Tensor[], Tensor[], Tensor)"
    ),
    "unit_weights": "(Tensor[] weights, Tensor[] slopes) -> (Tensor[], Tensor)",
    "unit_weights_gradient": "(Tensor[] grads, Tensor[] units, Tensor[] slopes, Tensor sigma) -> Tensor[]",
}

NAMES = tuple(_SCHEMAS)
_LIBRARY = torch.library.Library("lowcurve", "FRAGMENT")


def register(key: str, implementation: ModuleType) -> None:
    """Let the functions of a module compute the operators for one dispatch key, such as "CUDA" or "XPU".

    An operator that the module does not have stays with plain PyTorch.
    """
    for name in NAMES:
        function: Callable[..., Any] | None = getattr(implementation, name, None)
        if function is not None:
            _LIBRARY.impl(name, function, key)


for _name, _schema in _SCHEMAS.items():
    _LIBRARY.define(_name + _schema)
register("CompositeExplicitAutograd", reference)
register("CPU", cpu)
register("CUDA", gpu)
for _key in ("FuncTorchBatched", "Batched"):  # vmap, also of gradients: plain operations have rules for it
    register(_key, reference)

softplus = torch.ops.lowcurve.softplus.default
softplus_gradient = torch.ops.lowcurve.softplus_gradient.default
softplus_second = torch.ops.lowcurve.softplus_second.default
norm = torch.ops.lowcurve.norm.default
norm_gradient = torch.ops.lowcurve.norm_gradient.default
norm_second = torch.ops.lowcurve.norm_second.default
affine = torch.ops.lowcurve.affine.default
affine_gradient = torch.ops.lowcurve.affine_gradient.default
affine_second = torch.ops.lowcurve.affine_second.default
scales = torch.ops.lowcurve.scales.default
scales_gradient = torch.ops.lowcurve.scales_gradient.default
unit_weights = torch.ops.lowcurve.unit_weights.default
unit_weights_gradient = torch.ops.lowcurve.unit_weights_gradient.default

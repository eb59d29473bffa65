"""What becomes of each kind of layer? The policy table of the surgery: type -> rule, function -> type.

Activations are replaced by `REPLACED`, left for a stated reason by `LEFT`, or refused with a remedy by `REFUSED`; those
that are smooth already may keep their shape, by `SMOOTH`.
`MODULE_OF` says which module a functional activation stands for, so that there is one rule for both spellings.
"""

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from lowcurve.layers.gated import LearnedGELU, LearnedMish, LearnedSiLU
from lowcurve.layers.rectifiers import LeakyCenteredSoftplus, SmoothClip
from lowcurve.layers.softplus import CenteredSoftplus


class Rule(NamedTuple):
    """How an activation is replaced, and what the replacement does not keep even at large β."""

    build: Callable[[Any, float], nn.Module]
    note: str = ""


def _centered(_module: nn.Module, init_beta: float) -> nn.Module:
    return CenteredSoftplus(init_beta)


def _leaky(module: nn.LeakyReLU, init_beta: float) -> nn.Module:
    return LeakyCenteredSoftplus(module.negative_slope, init_beta)


def _clip(module: nn.Hardtanh, init_beta: float) -> nn.Module:
    return SmoothClip(float(module.min_val), float(module.max_val), init_beta)


_TO_RELU = Rule(_centered, "tends to ReLU for large β")
_SAME = "the same function, until β is trained"
_FOLDED = Rule(_centered, "folded before: β starts anew")

REPLACED: dict[type[nn.Module], Rule] = {
    nn.ReLU: Rule(_centered),
    nn.LeakyReLU: Rule(_leaky),
    nn.ReLU6: Rule(_clip),
    nn.Hardtanh: Rule(_clip),
    nn.Softplus: _TO_RELU,
    nn.ELU: _TO_RELU,
    nn.CELU: _TO_RELU,
    nn.SELU: _TO_RELU,
    nn.GELU: _TO_RELU,
    nn.SiLU: _TO_RELU,
    nn.Mish: _TO_RELU,
    nn.Hardswish: _TO_RELU,
}

# What is smooth already, and its form with a learned β, which starts as the same function.
_GELU = Rule(lambda module, _: LearnedGELU(approximate=module.approximate), _SAME)
_ERF_GELU = Rule(lambda _module, _: LearnedGELU(), _SAME)
_TANH_GELU = Rule(lambda _module, _: LearnedGELU(approximate="tanh"), _SAME)
_SILU = Rule(lambda _module, _: LearnedSiLU(), _SAME)
_QUICK_GELU = Rule(lambda _module, _: LearnedSiLU(init_beta=1.702), _SAME)
_MISH = Rule(lambda _module, _: LearnedMish(), _SAME)

SMOOTH: dict[type[nn.Module], Rule] = {nn.GELU: _GELU, nn.SiLU: _SILU, nn.Mish: _MISH}
# Third-party spellings that compute from tanh, erf or sigmoid by hand: known by class name.
NAMED_SMOOTH: dict[str, Rule] = {
    "GELUActivation": _ERF_GELU,
    "NewGELUActivation": _TANH_GELU,
    "GELUTanh": _TANH_GELU,
    "FastGELUActivation": _TANH_GELU,
    "QuickGELUActivation": _QUICK_GELU,
    "QuickGELU": _QUICK_GELU,
    "SiLUActivation": _SILU,
    "Swish": _SILU,
    "MishActivation": _MISH,
}

_SMOOTH = "smooth and bounded already"
_KINKED = "not differentiable everywhere, and no smooth counterpart keeps its meaning"
_POOLING = "1-Lipschitz without overlap, but not differentiable at ties: average pooling has a bounded Hessian"
_NORM = "normalizes each sample by itself: no constant holds for every input"

# What normalizes each sample by itself.
SAMPLE_NORMS = (
    *(nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.LocalResponseNorm),
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
)

LEFT: dict[type[nn.Module], str] = {
    **dict.fromkeys([nn.Tanh, nn.Sigmoid, nn.Softsign, nn.LogSigmoid, nn.Softmax, nn.LogSoftmax], _SMOOTH),
    **dict.fromkeys([nn.Hardsigmoid, nn.Softshrink, nn.Hardshrink, nn.GLU, nn.Threshold], _KINKED),
    **dict.fromkeys([nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d], _POOLING),
    **dict.fromkeys([nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d], _POOLING),
    **dict.fromkeys(SAMPLE_NORMS, _NORM),
    nn.Embedding: "looks up rows: no linear map of an input",
    nn.RNNBase: "recurrent: its matrices are applied once per time step, no single operator norm counts",
}

_CONVOLUTION = "write it as nn.Conv*d or nn.Linear, or pass spectral=False"

# What would leave a half-converted model behind, and how to avoid that. Each applies to one switch of `convert`.
REFUSED: dict[type[nn.Module], tuple[str, str]] = {
    nn.PReLU: ("activation", "its slope is a free parameter; use nn.LeakyReLU(0.25), or pass activation=False"),
    nn.RReLU: ("activation", "its slope is random; use nn.LeakyReLU, or pass activation=False"),
    nn.BatchNorm3d: ("batchnorm", "only 1d and 2d batch norms have a Lipschitz form; pass batchnorm=False"),
    nn.ConvTranspose1d: ("spectral", _CONVOLUTION),
    nn.ConvTranspose2d: ("spectral", _CONVOLUTION),
    nn.ConvTranspose3d: ("spectral", _CONVOLUTION),
    nn.Bilinear: ("spectral", _CONVOLUTION),
}

# Function -> the module it stands for, and the names of its arguments after the input.
MODULE_OF: dict[Callable[..., Any], tuple[type[nn.Module], tuple[str, ...]]] = {
    F.relu: (nn.ReLU, ("inplace",)),
    **dict.fromkeys([torch.relu, torch.relu_, Tensor.relu, Tensor.relu_], (nn.ReLU, ())),
    F.leaky_relu: (nn.LeakyReLU, ("negative_slope", "inplace")),
    F.leaky_relu_: (nn.LeakyReLU, ("negative_slope",)),
    F.relu6: (nn.ReLU6, ("inplace",)),
    F.hardtanh: (nn.Hardtanh, ("min_val", "max_val", "inplace")),
    F.hardtanh_: (nn.Hardtanh, ("min_val", "max_val")),
    F.softplus: (nn.Softplus, ("beta", "threshold")),
    F.elu: (nn.ELU, ("alpha", "inplace")),
    F.elu_: (nn.ELU, ("alpha",)),
    F.celu: (nn.CELU, ("alpha", "inplace")),
    **dict.fromkeys([torch.celu, torch.celu_], (nn.CELU, ("alpha",))),
    F.selu: (nn.SELU, ("inplace",)),
    **dict.fromkeys([torch.selu, torch.selu_], (nn.SELU, ())),
    F.gelu: (nn.GELU, ("approximate",)),
    F.silu: (nn.SiLU, ("inplace",)),
    F.mish: (nn.Mish, ("inplace",)),
    F.hardswish: (nn.Hardswish, ("inplace",)),
    **dict.fromkeys([F.prelu, torch.prelu, Tensor.prelu], (nn.PReLU, ())),
    **dict.fromkeys([F.rrelu, F.rrelu_, torch.rrelu], (nn.RReLU, ())),
    F.dropout: (nn.Dropout, ("p", "training", "inplace")),
    F.dropout1d: (nn.Dropout1d, ("p", "training", "inplace")),
    F.dropout2d: (nn.Dropout2d, ("p", "training", "inplace")),
    F.dropout3d: (nn.Dropout3d, ("p", "training", "inplace")),
    F.alpha_dropout: (nn.AlphaDropout, ("p", "training", "inplace")),
}

# Functions that stay, reported with the reason of the module they stand for.
LEFT_FUNCTIONS: dict[Callable[..., Any], str] = {
    **dict.fromkeys([torch.tanh, Tensor.tanh, F.tanh, torch.sigmoid, Tensor.sigmoid, F.sigmoid], _SMOOTH),
    **dict.fromkeys([F.hardsigmoid, F.threshold, F.glu], _KINKED),
    **dict.fromkeys([F.max_pool1d, F.max_pool2d, F.max_pool3d, torch.max_pool2d, F.adaptive_max_pool2d], _POOLING),
    **dict.fromkeys([F.layer_norm, F.group_norm, F.instance_norm, F.rms_norm], _NORM),
    **dict.fromkeys(
        [torch.clamp, Tensor.clamp, torch.clamp_min, Tensor.clamp_min, Tensor.clamp_, Tensor.clamp_min_],
        "a rectifier is converted where it is written as F.relu",
    ),
}

# Weights that are applied by a function instead of a layer: out of the surgery's reach.
LINEAR_FUNCTIONS = {
    *(F.linear, F.bilinear, F.conv1d, F.conv2d, F.conv3d),
    *(F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d),
}
MATRIX_PRODUCTS = {
    *(torch.matmul, torch.mm, torch.bmm, torch.einsum, torch.baddbmm, torch.addmm),
    *(Tensor.matmul, Tensor.mm, Tensor.bmm, Tensor.__matmul__, Tensor.__rmatmul__),
}
SOFTMAXES = {F.softmax, torch.softmax, Tensor.softmax}
# What may come between the last linear layer and the output: values are moved, averaged, scaled, made probabilities.
AFTER_THE_LAST = {
    *SOFTMAXES,
    *(F.log_softmax, torch.log_softmax, Tensor.log_softmax),
    *(F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout),
    *(F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d, F.avg_pool1d, F.avg_pool2d, F.avg_pool3d),
    *(torch.mean, Tensor.mean, torch.sum, Tensor.sum, torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__),
    *(torch.flatten, Tensor.flatten, torch.reshape, Tensor.reshape, Tensor.view, Tensor.unflatten),
    *(torch.squeeze, Tensor.squeeze, torch.unsqueeze, Tensor.unsqueeze, Tensor.__getitem__, torch.cat, torch.stack),
    *(torch.permute, Tensor.permute, torch.transpose, Tensor.transpose, Tensor.contiguous, Tensor.clone),
    *(Tensor.to, Tensor.float, Tensor.type, Tensor.mul, Tensor.__mul__, Tensor.__rmul__, torch.mul),
    *(Tensor.div, Tensor.__truediv__, torch.div),
}
ATTENTIONS = {F.scaled_dot_product_attention, F.multi_head_attention_forward}


def activation_rule(module: nn.Module) -> Rule | None:
    """Return the rule for an activation; a subclass with a forward of its own is no longer that activation."""
    if isinstance(module, fx.GraphModule) and _is_folded(module.graph):
        return _FOLDED
    named = _TO_RELU if type(module).__name__ in NAMED_SMOOTH else None
    return named or _lookup(REPLACED, module, own_forward=False)


def smooth_rule(module: nn.Module) -> Rule | None:
    """Return how an activation that is smooth already gets a learned β; None for any other module."""
    named = NAMED_SMOOTH.get(type(module).__name__)
    return named or _lookup(SMOOTH, module, own_forward=False)


def _is_folded(graph: fx.Graph) -> bool:
    """Whether a graph is what `fold` makes of a centered softplus; a copy of it has no other name."""
    return [node.target for node in graph.nodes if node.op.startswith("call")] == [F.softplus, operator.sub]


def reason_left(module: nn.Module) -> str | None:
    """Return why a layer stays as it is, or None where nothing needs to be said."""
    return None if activation_rule(module) else _lookup(LEFT, module, own_forward=True)


def refusal(module: nn.Module) -> tuple[str, str] | None:
    """Return (switch of `convert`, remedy) for a layer that would leave a half-converted model."""
    return _lookup(REFUSED, module, own_forward=True)


def _lookup(table: dict[type[nn.Module], Any], module: nn.Module, own_forward: bool) -> Any:
    for kind in type(module).__mro__:
        if kind in table:
            return table[kind] if own_forward or type(module).forward is kind.forward else None
    return None

"""How do batch norms disappear at inference? Each becomes part of the convolution whose output it alone reads.

In eval mode a batch norm is x ↦ w (x − μ) / √(v + ε) + b with fixed numbers per channel, and so is a convolution
followed by it another convolution: its weights scaled by w / √(v + ε), its bias by the same, less μ, plus b.
"""

from typing import Any

from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from lowcurve.compat import CALL_HOOKS, hooks
from lowcurve.surgery.probe import probe
from lowcurve.surgery.trace import slots

_PAIRS = {nn.Conv1d: nn.BatchNorm1d, nn.Conv2d: nn.BatchNorm2d, nn.Conv3d: nn.BatchNorm3d}


def merge_batchnorms(model: nn.Module, example_input: Any) -> None:
    """Merge the batch norms of a model in eval mode into the convolutions before them, in place.

    A pair is left as it is where anything else reads what the convolution gives, where either is used twice, listened
    to by a hook, or of a class of somebody's own.
    """
    run, places = probe(model, example_input), slots(model)
    layers: list[Any] = [module for module in model.modules() if type(module) in _PAIRS and run.reached(module)]
    for layer in layers:
        norm: Any = run.reader(layer)
        if norm is None or type(norm) is not _PAIRS[type(layer)] or _heard(layer) or _heard(norm):
            continue
        mean, var = norm.running_mean, norm.running_var
        if mean is None or var is None or len(places[layer]) != 1 or len(places[norm]) != 1:
            continue
        weight, bias = fuse_conv_bn_weights(layer.weight, layer.bias, mean, var, norm.eps, norm.weight, norm.bias)
        layer.register_parameter("weight", weight)
        layer.register_parameter("bias", bias)
        for owner, slot in places[norm]:
            owner.add_module(slot, nn.Identity())


def _heard(module: nn.Module) -> bool:
    return any(hooks(module, name) for name in CALL_HOOKS)

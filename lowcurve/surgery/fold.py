"""How does a low-curvature model leave home? Folded into plain torch.nn, it needs lowcurve no longer.

Spectral norms are divided into the weights, γ into the batch norms' weights, and activations, residuals and other
classes of this package become graphs of plain PyTorch operations (`torch.fx.GraphModule`); a class from elsewhere
stays, or becomes what it has registered (`lowcurve.layers.traits.plain`). The result pickles,
compiles and exports (`torch.export`, ONNX) where lowcurve is not installed.
"""

import copy
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.nn.utils import parametrize

from lowcurve import checks
from lowcurve.compat import CALL_HOOKS, FORWARD_HOOKS, children, forget_tracer, hooks
from lowcurve.layers.batchnorm import LipschitzBatchNorm1d, LipschitzBatchNorm2d
from lowcurve.layers.chain import Chain
from lowcurve.layers.residual import Normalize
from lowcurve.layers.softplus import CenteredSoftplus
from lowcurve.layers.traits import plain
from lowcurve.surgery.graphs import graph_module, keep_attributes
from lowcurve.surgery.hooks import carry_hooks
from lowcurve.surgery.inlined import inlined_graph, is_inlined
from lowcurve.surgery.merge import merge_batchnorms
from lowcurve.surgery.pretrained import guard
from lowcurve.surgery.record import forget, remember_fold
from lowcurve.surgery.rewrite import ChildrenAreLeaves


@torch.inference_mode(False)  # or what it returns could never be trained on
def fold(model: nn.Module, example_input: Any = None) -> nn.Module:
    """Return a copy of `model` in eval mode, with the same eval-mode outputs and no class of lowcurve in it.

    With an `example_input`, a batch as the model takes it, batch norms are merged into the convolutions before them: a
    fifth faster, and no longer fit to be trained.

    >>> plain = fold(nn.Sequential(CenteredSoftplus(init_beta=1.0)))
    >>> plain(torch.tensor([0.0, 100.0])).tolist()
    [0.0, 99.30685424804688]
    """
    checks.modules(model=model)
    result = _plain(checks.copied(model).eval(), {})
    if example_input is not None:
        merge_batchnorms(result, example_input)
    if any(is_ours(module) or parametrize.is_parametrized(module) for module in model.modules()):
        remember_fold(model, result, example_input)
        guard(result)
    return result


def is_ours(module: nn.Module) -> bool:
    """Whether a module is of a class of this package, or of one made from such."""
    return any(base.__module__.startswith("lowcurve.") for base in type(module).__mro__)


def _plain(module: nn.Module, done: dict[nn.Module, nn.Module]) -> nn.Module:
    """Fold the children, then the module itself; a module that is shared stays shared."""
    if module not in done:
        _bake_parametrizations(module)
        _drop_own_hooks(module)
        forget(module)
        for name, child in children(module).items():
            module.add_module(name, _plain(child, done))
        done[module] = _without_lowcurve(module)
        if done[module] is not module:
            carry_hooks(module, done[module])
    return done[module]


def _bake_parametrizations(module: nn.Module) -> None:
    """Make the weights that the layer computes (eval mode: at the present singular vectors) its own.

    `parametrize.remove_parametrizations` would delete the property from the class, which copies share.
    """
    if not parametrize.is_parametrized(module):
        return
    chains = dict(module.parametrizations.items())  # type: ignore[union-attr,operator]
    values = {name: getattr(module, name).detach().clone() for name in chains}
    del module.parametrizations
    module.__class__ = type(module).__bases__[0]
    for name, value in values.items():
        trained = any(parameter.requires_grad for parameter in chains[name].parameters())
        module.register_parameter(name, nn.Parameter(value, requires_grad=trained))


def _drop_own_hooks(module: nn.Module) -> None:
    for listening in [hooks(module, name) for name in FORWARD_HOOKS]:
        for key, hook in list(listening.items()):
            if getattr(hook, "__module__", "").startswith("lowcurve."):
                for name in CALL_HOOKS:  # a hook's flags have its key
                    hooks(module, name).pop(key, None)


def _without_lowcurve(module: nn.Module) -> nn.Module:
    """Return the form that the module's class has registered, written out where it is of this package."""
    found = plain(module)
    result = module if found is None else found
    if is_ours(result) or (is_inlined(result) and not isinstance(result, fx.GraphModule)):
        result = _as_graph(result, type(module).__name__)
    return result


def _as_graph(module: nn.Module, name: str) -> fx.GraphModule:
    """Write the module's own forward out as plain operations, with its children as they are."""
    graph = copy.deepcopy(inlined_graph(module)) or ChildrenAreLeaves().trace(module)
    forget_tracer(graph)
    result = graph_module(module, graph, name)
    if is_inlined(module):
        keep_attributes(module, result)
    return result.eval()


class _PlainSoftplus(nn.Module):
    """s₀(x; β) with β a number, to an absolute error below 1e-6 in float32.

    PyTorch's softplus is fast, but taking log(2) / β from it cancels digits, the more the smaller β is. Below β = 1 it
    is x⁺ + log1p(expm1(-β|x|) / 2) / β, as `CenteredSoftplus` computes it, five times slower.
    """

    def __init__(self, beta: float) -> None:
        super().__init__()
        self.beta = beta

    def forward(self, x: Tensor) -> Tensor:
        """Apply the activation elementwise; derivatives at 0 are right in both forms."""
        if self.beta >= 1:
            # beyond βx = 40 PyTorch's softplus is x, which no float tells from it
            return F.softplus(x, self.beta, 40.0) - math.log(2) / self.beta
        positive = x > 0
        decay = torch.where(positive, -self.beta * x, self.beta * x)
        return torch.where(positive, x, torch.zeros_like(x)) + torch.log1p(torch.expm1(decay) / 2) / self.beta


@plain.register
def _plain_softplus(module: CenteredSoftplus) -> nn.Module:
    return _PlainSoftplus(float(module.beta.detach()))


class _PlainNormalize(nn.Module):
    """(x - mean) / std per channel (dimension 1), in a form that does not ask for the number of dimensions."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    def forward(self, x: Tensor) -> Tensor:
        """Normalize each channel."""
        return ((x.transpose(1, -1) - self.mean) / self.std).transpose(1, -1)


@plain.register
def _plain_normalize(module: Normalize) -> nn.Module:
    return _PlainNormalize(module.mean, module.std)


@plain.register
def _plain_chain(module: Chain) -> nn.Module:
    module.__class__ = nn.Sequential  # type: ignore[assignment]  # keeps hooks and attributes
    return module


@plain.register(LipschitzBatchNorm1d)
@plain.register(LipschitzBatchNorm2d)
@torch.no_grad()
def _plain_norm(module: LipschitzBatchNorm1d | LipschitzBatchNorm2d) -> nn.Module:
    """Multiply min(1, γ / ‖BN‖) into the affine part, which is made where there is none."""
    norm, factor = module.norm, module.factor()
    if norm.affine:
        norm.weight.mul_(factor)
        norm.bias.mul_(factor)
    else:
        ones = torch.ones_like(norm.running_mean)  # type: ignore[arg-type]
        norm.affine = True
        norm.weight, norm.bias = nn.Parameter(ones * factor), nn.Parameter(torch.zeros_like(ones))
    return norm

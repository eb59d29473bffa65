r"""Batch norm, residual sum and softplus in one pass: which modules are joined?

.. math:: y = s(\text{factor} · (\mathrm{BN}(x) + \text{other})), \qquad s = s_0(\,·\,; β) + \text{shift}

One by one, each of the four would write a tensor for the next to read. As one operator (`kernels/batchnorm.py`)
nothing stands in memory between x and y, nor between their gradients. Modules are joined only where nobody can tell: no
hook, no tracer, and in eval mode no parameter that learns. In all other cases they are called one by one.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from lowcurve.compat import HOOKS, function_modes_other_than, has_global_hooks, is_compiled, without_torch_function
from lowcurve.kernels.affine import takes_affine
from lowcurve.kernels.batchnorm import batch_norm_by_operator
from lowcurve.kernels.engine import is_transformed
from lowcurve.kernels.norm import FollowingActivation, Statistics
from lowcurve.kernels.replace import fast_double_backward
from lowcurve.kernels.softplus import constant_tensor, replaces_softplus
from lowcurve.layers.batchnorm import LipschitzBatchNorm1d, LipschitzBatchNorm2d, statistics
from lowcurve.layers.softplus import CenteredSoftplus
from lowcurve.layers.traits import smooth

# Batch norms that can be joined with what follows, and the numbers of dimensions of their inputs.
_NORMS: dict[type, tuple[int, ...]] = {
    nn.BatchNorm1d: (2, 3),
    nn.BatchNorm2d: (4,),
    LipschitzBatchNorm1d: (2, 3),
    LipschitzBatchNorm2d: (4,),
}


class Chain(nn.Sequential):
    """Modules one after the other, as in `nn.Sequential`; a batch norm goes in one pass with the softplus after it.

    What comes next must not change the activation's output in place: as that of `CenteredSoftplus`, it is saved.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Apply all modules."""
        if torch.jit.is_scripting():
            for module in self:
                x = module(x)
            return x
        else:  # noqa: RET505 (TorchScript does not look in here)
            x, norm = self.up_to_norm(x)
            return x if norm is None else norm(x)

    def up_to_norm(self, x: Tensor) -> tuple[Tensor, nn.Module | None]:
        """Apply all modules but a batch norm at the end, which is returned with the result."""
        norm: nn.Module | None = None
        for module in self:
            if norm is not None:
                x, norm = activate(module, norm, x), None
            elif type(module) in _NORMS:
                norm = module
            else:
                x = module(x)
        return x, norm


@smooth.register
def _smooth(module: Chain) -> bool:
    return True


def activate(
    activation: nn.Module, body: nn.Module, x: Tensor, other: Tensor | None = None, factor: float = 1.0
) -> Tensor:
    """Return activation(factor · (body(x) + other)), in one pass with the batch norm that `body` is or ends with."""
    norm: nn.Module | None = body
    if type(body) is Chain and not is_transformed(x) and _unobserved(body):
        x, norm = body.up_to_norm(x)
    if type(norm) in _NORMS and not is_transformed(x) and _unobserved(norm, activation):
        with without_torch_function():  # or `fast_double_backward` would be asked about every `x.dim()`
            joined = _joined(norm, activation, x, other, factor)
        if joined is not None:
            return joined
    y = x if norm is None else norm(x)
    y = y if other is None else y + other
    return activation(y if factor == 1 else factor * y)


def _unobserved(*modules: Any) -> bool:
    """Whether no hook, no other forward and no mode would notice that the modules are not called."""
    if has_global_hooks() or function_modes_other_than(fast_double_backward):
        return False
    return not any(
        "forward" in (own := vars(module)) or is_compiled(module) or any(own[name] for name in HOOKS)
        for module in modules
    )


def _joined(norm: Any, activation: Any, x: Tensor, other: Tensor | None, factor: float) -> Tensor | None:
    """Compute in one operator what these modules would; None where they are not such, or PyTorch would refuse."""
    inner = norm.norm if isinstance(norm, LipschitzBatchNorm1d | LipschitzBatchNorm2d) else norm
    softplus = _softplus(activation, x)
    if softplus is None or x.dim() not in _NORMS[type(norm)] or not _fits(inner, norm.training, x):
        return None
    if other is not None and (other.shape != x.shape or other.dtype != x.dtype or is_transformed(other)):
        return None
    log_beta, shift = softplus
    if not norm.training and not takes_affine(log_beta, *norm.parameters()):
        return None
    weight, bias = (norm.weight, norm.bias) if norm is inner else norm.affine(x)
    moved = Statistics(*statistics(inner, norm.training), inner.eps)
    return batch_norm_by_operator(
        x, weight, bias, moved, norm.training, FollowingActivation(log_beta, other, factor, shift)
    )


def _softplus(activation: Any, x: Tensor) -> tuple[Tensor, float] | None:
    """Return log β and shift of an activation that is a softplus of x."""
    if type(activation) is CenteredSoftplus:
        return activation.log_beta, 0.0
    if type(activation) is nn.Softplus and replaces_softplus(x, activation.beta, activation.threshold):
        return constant_tensor(math.log(activation.beta), x.device), math.log(2) / activation.beta
    return None


def _fits(norm: Any, training: bool, x: Tensor) -> bool:
    """Whether a batch norm is PyTorch's own, not one whose statistics span processes, and would not refuse x."""
    if type(norm) not in _NORMS or norm.eps <= 0 or (norm.running_mean is None and not training):
        return False
    tensors = (norm.weight, norm.bias, norm.running_mean, norm.running_var)
    if any(t is not None and t.shape != x.shape[1:2] for t in tensors):
        return False
    return not training or x.numel() > x.shape[1]

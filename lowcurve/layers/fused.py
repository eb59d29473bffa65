r"""Batch norm, residual sum and softplus in one pass: which modules are joined, and how is that differentiated?

.. math:: y = s(\text{factor} · (\mathrm{BN}(x) + \text{other})), \qquad s = s_0(\,·\,; β) + \text{shift}

One by one, each of the four would write a tensor for the next to read. In `_norm_softplus.c` nothing stands in memory
between x and y, nor between their gradients. Modules are joined only where nobody can tell: in training mode, plain
float32 tensors on the CPU, no hook, no tracer. In all other cases they are called one by one.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode

from lowcurve.layers import _loops
from lowcurve.layers.batchnorm import LipschitzBatchNorm1d, LipschitzBatchNorm2d, statistics
from lowcurve.layers.batchnorm_gradient import batch_norm_gradient
from lowcurve.layers.engine import needed, separate
from lowcurve.layers.second_order import fast_double_backward
from lowcurve.layers.softplus import (
    LEAST_THRESHOLD,
    CenteredSoftplus,
    is_transformed,
    sharpness,
    softplus_gradient,
)
from lowcurve.layers.traits import smooth

# Batch norms that can be joined with what follows, and the numbers of dimensions of their inputs.
_NORMS: dict[type, tuple[int, ...]] = {
    nn.BatchNorm1d: (2, 3),
    nn.BatchNorm2d: (4,),
    LipschitzBatchNorm1d: (2, 3),
    LipschitzBatchNorm2d: (4,),
}
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


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
        with torch._C.DisableTorchFunction():  # or `fast_double_backward` would be asked about every `x.dim()`
            joined = _joined(norm, activation, x, other, factor)
        if joined is not None:
            return joined
    y = x if norm is None else norm(x)
    y = y if other is None else y + other
    return activation(y if factor == 1 else factor * y)


def _unobserved(*modules: Any) -> bool:
    """Whether no hook, no other forward and no mode would notice that the modules are not called."""
    if nn.modules.module._has_any_global_hook():
        return False
    modes = torch._C._len_torch_function_stack()
    if modes > 1 or (modes == 1 and type(_get_current_function_mode()) is not fast_double_backward):
        return False
    return not any(
        "forward" in (own := vars(module)) or module._compiled_call_impl or any(own[hooks] for hooks in _HOOKS)
        for module in modules
    )


def _joined(norm: Any, activation: Any, x: Tensor, other: Tensor | None, factor: float) -> Tensor | None:
    """Compute by the compiled loops what these modules would; None where the loops cannot."""
    inner = norm.norm if isinstance(norm, LipschitzBatchNorm1d | LipschitzBatchNorm2d) else norm
    if not norm.training or type(inner) not in _NORMS:  # the latter: batch statistics that span processes
        return None
    if x.dim() not in _NORMS[type(norm)] or x.numel() <= x.shape[1] or inner.eps <= 0:
        return None  # for PyTorch to refuse
    if torch.is_autocast_enabled(x.device.type):
        return None
    if type(activation) is CenteredSoftplus:
        log_beta: Tensor = activation.log_beta
        shift = 0.0
    elif type(activation) is nn.Softplus and activation.beta > 0 and activation.threshold >= LEAST_THRESHOLD:
        log_beta, shift = torch.tensor(math.log(activation.beta)), math.log(2) / activation.beta
    else:
        return None
    weight, bias = (norm.weight, norm.bias) if norm is inner else norm.affine(x)
    moved = inner.running_mean, inner.running_var
    if any(t is not None and t.shape != x.shape[1:2] for t in (weight, bias, *moved)):
        return None  # for PyTorch to refuse
    if any(t is not None and not t.is_contiguous() for t in moved) or not _loops.normalizes(x, weight, bias, *moved):
        return None
    if other is not None and (other.shape != x.shape or not _loops.applies(other)):
        return None
    numbers = (*statistics(inner, True), inner.eps, factor, shift)
    return _NormSoftplus.apply(x, log_beta, weight, bias, other, *numbers)


class _Saved(NamedTuple):
    """What gradients need of a forward; `numbers` are ε, factor and shift."""

    y: Tensor
    x: Tensor
    weight: Tensor | None
    log_beta: Tensor
    mean: Tensor
    invstd: Tensor
    numbers: tuple[float, float, float]


class _NormSoftplus(torch.autograd.Function):
    """(x, ρ, w, b, other) ↦ y = s₀(factor (w x̂ + b + other); e^ρ) + shift, with x̂ = (x - μ) r as in batch norm."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        log_beta: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        other: Tensor | None,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        momentum: float,
        eps: float,
        factor: float,
        shift: float,
    ) -> Tensor:
        normalization = (weight, bias, running_mean, running_var, momentum, eps)
        y, mean, invstd = _loops.norm_softplus(x, *normalization, other, factor, sharpness(log_beta), shift)
        ctx.save_for_backward(y, x, weight, log_beta, mean, invstd)
        ctx.numbers = eps, factor, shift
        ctx.with_other = other is not None
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        saved, wanted = _Saved._make((*ctx.saved_tensors, ctx.numbers)), (ctx.with_other, needed(ctx, 1))
        found = (
            _NormSoftplusGradient.apply(grad, *saved, *wanted)
            if torch.is_grad_enabled()
            else _gradients(grad, saved, *wanted)
        )
        in_x, in_other, in_weight, in_bias, in_beta = found
        _, _, with_weight, with_bias, *_ = ctx.needs_input_grad
        affine = (in_weight if with_weight else None, in_bias if with_bias else None)
        return in_x, in_beta, *affine, in_other, *(None,) * 6


class _NormSoftplusGradient(torch.autograd.Function):
    """(g, y, x, w, ρ) ↦ the gradients in x, other, w, b and ρ, for a gradient g of y.

    With t = factor g σ the gradient of softplus, they are w r P(t), t, Σ t x̂, Σ t as in batch norm, and
    Σ g (log 2 - H(σ)) / β.
    """

    @staticmethod
    def forward(ctx: Any, grad: Tensor, *given: Any) -> tuple[Tensor | None, ...]:
        *saved, with_other, with_beta = given
        *tensors, ctx.numbers = saved
        outputs = _gradients(grad, _Saved._make(saved), with_other, with_beta)
        ctx.save_for_backward(grad, *tensors, *outputs[2:4])
        ctx.set_materialize_grads(False)
        return outputs

    @staticmethod
    def backward(
        ctx: Any, outer: Tensor | None, outer_other: Tensor | None, *outer_rest: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        grad, y, x, weight, log_beta, mean, invstd, hat_sum, sum_ = ctx.saved_tensors
        sums = (mean, invstd, hat_sum, sum_)
        given = [grad, *sums, *(tensor for tensor in (outer, outer_other) if tensor is not None)]
        others = any(tensor is not None for tensor in outer_rest)
        if outer is not None and not others and not torch.is_grad_enabled() and _in_loops(y, x, weight, *given):
            _, factor, shift = ctx.numbers
            settings = (factor, sharpness(log_beta), shift)
            in_grad, in_y, in_x, in_weight, in_beta = _loops.norm_softplus_second(
                outer, outer_other, grad, y, x, weight, *sums, *settings
            )
            return in_grad, in_y, in_x, None if weight is None else in_weight, in_beta, *(None,) * 5
        return *_any_order(ctx, (outer, outer_other, *outer_rest)), *(None,) * 5


def _gradients(grad: Tensor, saved: _Saved, with_other: bool, with_beta: bool) -> tuple[Tensor | None, ...]:
    y, x, weight, log_beta, mean, invstd, (_, factor, shift) = saved
    if _in_loops(y, x, weight, mean, invstd, grad):
        settings = (factor, sharpness(log_beta), shift, with_other, with_beta)
        return _loops.norm_softplus_gradient(grad, y, x, weight, mean, invstd, *settings)
    found = _one_by_one(grad, saved)
    wanted = (True, with_other, True, True, with_beta)
    return tuple(tensor if want else None for tensor, want in zip(found, wanted, strict=True))


def _in_loops(y: Tensor, x: Tensor, weight: Tensor | None, *others: Tensor) -> bool:
    """Whether the compiled loops apply to tensors as they come back: hooks may have changed what was saved."""
    return _loops.normalizes(x, weight) and _loops.normalizes(y, *others)


def _one_by_one(grad: Tensor, saved: _Saved) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """Compute the same by the gradients of softplus and of batch norm, which can be differentiated to any order."""
    y, x, weight, log_beta, mean, invstd, (eps, factor, shift) = saved
    through, in_beta = softplus_gradient(grad, y, log_beta, shift)
    through = factor * through
    in_x, in_weight, in_bias = batch_norm_gradient(through, x, weight, mean, invstd, eps)
    return in_x, through, in_weight, in_bias, in_beta


def _any_order(ctx: Any, outer: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    *differentiable, mean, invstd, _, _ = ctx.saved_tensors
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        inputs: list[Any] = [None if t is None else separate(t, create_graph) for t in differentiable]
        grad, *others = inputs
        outputs: tuple[Any, ...] = _one_by_one(grad, _Saved._make((*others, mean, invstd, ctx.numbers)))
        pairs = [(o, v) for o, v in zip(outputs, outer, strict=True) if v is not None]
        given = [t for t in inputs if t is not None]
        found = torch.autograd.grad(
            [o for o, _ in pairs], given, [v for _, v in pairs], create_graph=create_graph, allow_unused=True
        )
    following = iter(found)
    return tuple(None if t is None else next(following) for t in inputs)

"""What are the operators of batch norm given? Their arguments, in the order of the schemas in `ops.py`."""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor


class Norm(NamedTuple):
    """Batch norm by the batch's own statistics, which move the running ones, then other, factor and softplus."""

    x: Tensor
    weight: Tensor | None
    bias: Tensor | None
    running_mean: Tensor | None
    running_var: Tensor | None
    momentum: float
    eps: float
    other: Tensor | None
    log_beta: Tensor | None
    factor: float
    shift: float


class NormGradient(NamedTuple):
    """Its gradient: y only where there is an activation, and which of the gradients in other and log β are wanted."""

    grad: Tensor
    y: Tensor | None
    x: Tensor
    weight: Tensor | None
    mean: Tensor
    invstd: Tensor
    eps: float
    log_beta: Tensor | None
    factor: float
    shift: float
    with_other: bool
    with_beta: bool


class NormSecond(NamedTuple):
    """The gradient of that gradient, of which `in_weight` and `in_bias` are results."""

    outer: Tensor
    outer_other: Tensor | None
    grad: Tensor
    y: Tensor | None
    x: Tensor
    weight: Tensor | None
    mean: Tensor
    invstd: Tensor
    in_weight: Tensor
    in_bias: Tensor
    eps: float
    log_beta: Tensor | None
    factor: float
    shift: float


class Affine(NamedTuple):
    """Batch norm by the running statistics: y = w (x - mean) / √(var + ε) + b, then what follows."""

    x: Tensor
    weight: Tensor | None
    bias: Tensor | None
    mean: Tensor
    var: Tensor
    eps: float
    other: Tensor | None
    log_beta: Tensor | None
    factor: float
    shift: float


class AffineGradient(NamedTuple):
    """Its gradient in x and other; y only where there is an activation."""

    grad: Tensor
    y: Tensor | None
    weight: Tensor | None
    var: Tensor
    eps: float
    log_beta: Tensor | None
    factor: float
    shift: float
    with_other: bool


class AffineSecond(NamedTuple):
    """The gradient of that gradient, in grad and y."""

    outer: Tensor
    outer_other: Tensor | None
    grad: Tensor
    y: Tensor | None
    weight: Tensor | None
    var: Tensor
    eps: float
    log_beta: Tensor | None
    factor: float
    shift: float


OptionalTensors = Sequence[Tensor | None]
Norms = tuple[Tensor, Tensor, Tensor]  # y, μ, r
Gradients = tuple[Tensor, Tensor | None, Tensor, Tensor, Tensor | None]  # in x, other, weight, bias, log β
Seconds = tuple[Tensor, Tensor | None, Tensor, Tensor, Tensor | None]  # in grad, y, x, weight, log β

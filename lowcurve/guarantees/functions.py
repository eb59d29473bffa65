"""Which step is a function or a method that a forward calls? Sums, factors, concatenations, shapes, activations."""

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from lowcurve.guarantees.affine import Channelwise
from lowcurve.guarantees.layers import activation_step, scalar
from lowcurve.guarantees.steps import Add, Concatenate, Reshape, Step
from lowcurve.layers.traits import constants
from lowcurve.surgery import rules

_SUMS = (operator.add, operator.iadd, torch.add, "add", "add_")
_DIFFERENCES = (operator.sub, operator.isub, torch.sub, "sub", "sub_")
_PRODUCTS = (operator.mul, operator.imul, torch.mul, "mul", "mul_")
_QUOTIENTS = (operator.truediv, operator.itruediv, torch.div, "div", "div_")
_CONCATENATIONS = (torch.cat, torch.concat)
_SHAPES = (torch.flatten, torch.reshape, torch.squeeze, "flatten", "view", "reshape", "squeeze", "contiguous", "clone")
_IN_PLACE = (operator.iadd, operator.isub, operator.imul, operator.itruediv)
# What a forward may compute besides tensors: shapes, and numbers made of them.
_NUMBERS = (
    *("size", "dim", "ndimension", getattr, operator.getitem),
    *(operator.add, operator.sub, operator.mul, operator.floordiv, operator.neg, math.prod),
)
# Functions and methods that stand for a module, beside those that surgery knows.
_ACTIVATIONS: dict[Callable[..., Any], tuple[type[nn.Module], tuple[str, ...]]] = {
    **{function: found for function, found in rules.MODULE_OF.items() if found[0] in constants.registry},
    **dict.fromkeys([torch.tanh, Tensor.tanh, Tensor.tanh_, F.tanh], (nn.Tanh, ())),
    **dict.fromkeys([torch.sigmoid, Tensor.sigmoid, Tensor.sigmoid_, F.sigmoid], (nn.Sigmoid, ())),
}


def function_step(node: fx.Node, inputs: list[fx.Node]) -> Step | None:
    """Return the step of a function or method call on `inputs`, or None where it is not known."""
    for kinds, rule in _FUNCTIONS:
        if node.target in kinds:
            return rule(node, inputs)
    activation = _activation(node)
    return None if activation is None or len(inputs) != 1 else activation_step(activation)


def is_number(node: fx.Node) -> bool:
    """Whether a node that is no tensor only reads shapes or calculates with them."""
    if node.target is getattr:
        return node.args[1] in ("shape", "ndim")
    return node.target in _NUMBERS


def node_overwrites(node: fx.Node) -> bool:
    """Whether a function or method changes its first argument, or anything else, in place."""
    if node.op not in ("call_function", "call_method"):
        return False
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    by_name = name.endswith("_") and not name.endswith("__")
    return by_name or node.target in _IN_PLACE or "out" in node.kwargs or bool(_settings(node).get("inplace"))


def aliases(node: fx.Node) -> bool:
    """Whether the result may be its input under another name."""
    called = node.op in ("call_function", "call_method")
    return called and node.target != "clone" and (node.target in _SHAPES or node.target is F.dropout)


def _settings(node: fx.Node) -> dict[str, Any]:
    """The settings of a functional activation by name."""
    found = _ACTIVATIONS.get(_function(node))
    if found is None or not node.args:
        return dict(node.kwargs)
    return dict(zip(found[1], node.args[1:], strict=False)) | dict(node.kwargs)


def _function(node: fx.Node) -> Any:
    return getattr(Tensor, node.target, None) if isinstance(node.target, str) else node.target


def _activation(node: fx.Node) -> nn.Module | None:
    """Return the module that a function stands for; None for a setting that it does not take, or that is computed."""
    found = _ACTIVATIONS.get(_function(node))
    if found is None or not node.args or len(node.args) > 1 + len(found[1]):
        return None
    settings = _settings(node)
    settings.pop("inplace", None)
    if not all(isinstance(value, int | float | str) for value in settings.values()) or not set(settings) <= set(
        found[1]
    ):
        return None
    return found[0](**settings)


def _sum_step(node: fx.Node, inputs: list[fx.Node], sign: float = 1.0) -> Step | None:
    if node.kwargs or len(node.args) != 2:
        return None
    if all(isinstance(a, fx.Node) for a in node.args):
        if len(inputs) == 1:  # x + x
            return Channelwise(scalar(1 + sign), scalar(0.0)) if node.args[0] is node.args[1] else None
        shapes = {tuple(argument.meta["tensor_meta"].shape) for argument in inputs}
        return Add(sign) if len(inputs) == 2 and len(shapes) == 1 else None
    if sign < 0 and not isinstance(node.args[0], fx.Node):  # number − x
        return _number_step(node, lambda value: (-1.0, value))
    return _number_step(node, lambda value: (1.0, sign * value))


def _number_step(node: fx.Node, affine: Callable[[float], tuple[float, float]]) -> Step | None:
    """x ∘ number, with `affine` saying which multiple and shift that is."""
    numbers = [a for a in node.args if isinstance(a, int | float)]
    if len(numbers) != 1 or len(node.args) != 2 or node.kwargs:
        return None
    scale, shift = affine(float(numbers[0]))
    if not (math.isfinite(scale) and math.isfinite(shift) and abs(scale) < 1e30 and abs(shift) < 1e30):
        return None
    return Channelwise(scalar(scale), scalar(shift))


def _quotient_step(node: fx.Node, inputs: list[fx.Node]) -> Step | None:
    if not node.args or not isinstance(node.args[0], fx.Node):
        return None
    return _number_step(node, lambda value: (1 / value if value else math.inf, 0.0))


def _concatenation_step(node: fx.Node, inputs: list[fx.Node]) -> Step | None:
    if not node.args or not isinstance(node.args[0], tuple | list) or set(node.kwargs) - {"dim"}:
        return None
    dim = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else 0)
    repeated = len(inputs) != len(node.args[0])
    dims = len(node.meta["tensor_meta"].shape)
    return None if repeated or not isinstance(dim, int) or dim % dims == 0 else Concatenate(dim)


def _shape_step(node: fx.Node, inputs: list[fx.Node]) -> Step | None:
    return Reshape(tuple(node.meta["tensor_meta"].shape[1:])) if len(inputs) == 1 else None


def _dropout_step(node: fx.Node, inputs: list[fx.Node]) -> Step | None:
    training = node.args[2] if len(node.args) > 2 else node.kwargs.get("training", True)
    return _shape_step(node, inputs) if training is False else None


_FUNCTIONS: tuple[tuple[tuple[Any, ...], Callable[[fx.Node, list[fx.Node]], Step | None]], ...] = (
    (_SUMS, _sum_step),
    (_DIFFERENCES, lambda node, inputs: _sum_step(node, inputs, sign=-1.0)),
    (_PRODUCTS, lambda node, inputs: _number_step(node, lambda value: (value, 0.0))),
    (_QUOTIENTS, _quotient_step),
    (_CONCATENATIONS, _concatenation_step),
    (_SHAPES, _shape_step),
    ((F.dropout,), _dropout_step),
)

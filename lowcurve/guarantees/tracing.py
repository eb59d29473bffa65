"""What does torch.fx see of a model? Every operation down to known layers, with the shape and type of each tensor."""

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn

from lowcurve.errors import UserError
from lowcurve.guarantees import layers
from lowcurve.guarantees.network import Shape
from lowcurve.surgery.graphs import graph_module
from lowcurve.surgery.nested import tensors


class Kind(NamedTuple):
    """What is known of a tensor before it is computed."""

    shape: torch.Size
    dtype: torch.dtype


class _Shapes(fx.Interpreter):
    """Run a graph and note what kind of tensor each node gives; unlike PyTorch's own pass it prints nothing."""

    def run_node(self, n: fx.Node) -> Any:
        """Run one node; several tensors are noted as no kind."""
        result = super().run_node(n)
        if isinstance(result, Tensor):
            n.meta["tensor_meta"] = Kind(result.shape, result.dtype)
        elif next(tensors(result), None) is not None:
            n.meta["tensor_meta"] = None
        return result


class _Proxy(fx.Proxy):
    """A value that is traced; `y += z` is recorded as what it is, a change in place, not as `y = y + z`."""

    def __iadd__(self, other: object) -> fx.Proxy:
        return self._in_place(operator.iadd, other)

    def __isub__(self, other: object) -> fx.Proxy:
        return self._in_place(operator.isub, other)

    def __imul__(self, other: object) -> fx.Proxy:
        return self._in_place(operator.imul, other)

    def __itruediv__(self, other: object) -> fx.Proxy:
        return self._in_place(operator.itruediv, other)

    def _in_place(self, function: Callable[..., object], other: object) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", function, (self, other), {})


class Tracer(fx.Tracer):
    """Look into modules of the user, but not into layers that are registered or that PyTorch defines."""

    proxy_buffer_attributes = True

    def proxy(self, node: fx.Node) -> fx.Proxy:
        """Return what stands for the value of a node."""
        return _Proxy(node, self)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Stop at layers."""
        return layers.is_layer(m) or super().is_leaf_module(m, module_qualified_name)


def traced(model: nn.Module, input_size: Shape) -> fx.Graph:
    """Trace the model and note the shape of every tensor."""
    try:
        graph = Tracer().trace(model)
        _Shapes(graph_module(model, graph)).run(example_of(model, input_size))
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"expected a model that torch.fx can trace on inputs of shape {tuple(input_size)}, "
            f"got {type(model).__name__}: {error}. Check the shape; a forward whose control flow depends on the "
            "data cannot be bounded"
        ) from error
    return graph


def example_of(model: nn.Module, input_size: Shape) -> Tensor:
    """Return two samples of zeros in the model's type of numbers."""
    return next((p for p in model.parameters()), torch.zeros(())).new_zeros(2, *input_size)

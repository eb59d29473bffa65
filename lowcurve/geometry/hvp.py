"""Hessian-vector products of many samples at once, by two reverse passes over one retained graph."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from lowcurve.compat import function_of
from lowcurve.errors import UserError
from lowcurve.geometry.functions import Of, local_model, twice_differentiable
from lowcurve.kernels.engine import graph_nodes


def gradients(model: nn.Module, x: Tensor, y: Tensor, of: Of) -> tuple[Tensor, Tensor]:
    """Return ∇q (n, d) and log s (n,) at each sample, where f = s·q; see `local_model`."""
    _, gradient, log_scale = _differentiate(model, x, y, of, twice=False)
    return gradient.flatten(1), log_scale


def _differentiate(model: nn.Module, x: Tensor, y: Tensor, of: Of, twice: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return a copy of `x`, the gradients ∇q with respect to it (with their graph if `twice`), and log s."""
    with torch.enable_grad():
        leaf = x.detach().clone().requires_grad_()
        outputs = twice_differentiable(model, leaf)
        values, log_scale = local_model(of)(outputs, y)
        if values.shape != (len(x),):
            raise UserError(f"expected one value per sample, ({len(x)},), got {tuple(values.shape)}")
        if not values.requires_grad:
            raise UserError("the outputs do not depend on the inputs differentiably; is there a detach()?")
        if twice:
            _refuse_once_differentiable(values.grad_fn)
        with explained():
            (gradient,) = torch.autograd.grad(values.sum(), leaf, create_graph=twice, materialize_grads=True)
    return leaf, gradient, log_scale.detach()


def _refuse_once_differentiable(root: Any) -> None:
    """Refuse a function of somebody's own with a first derivative alone: PyTorch may take its second one for zero."""
    for node in graph_nodes(root):
        backward = getattr(function_of(node), "backward", None)
        if getattr(getattr(backward, "__code__", None), "co_filename", "") == once_differentiable.__code__.co_filename:
            raise UserError(
                f"expected a model that can be differentiated twice, got {type(node).__name__}, which is marked as "
                "once_differentiable; there is no second derivative of that operation; use a smooth one in its place"
            )


@contextmanager
def explained() -> Iterator[None]:
    """Say what to do where PyTorch cannot differentiate the model (again)."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).split(". Hint")[0]
        if "not implemented" in reason:
            remedy = "there is no second derivative of that operation; use a smooth one in its place"
        elif "inplace operation" in reason:
            remedy = "build the model with inplace=False and write x = x + y for x += y"
        else:
            raise
        raise UserError(f"expected a model that can be differentiated twice, got: {reason}; {remedy}") from error


class Hessian:
    r"""The Hessians ∇²q(xᵢ), i = 1..n, as one linear operator on n flat vectors, shape (n, d).

    f = s·q is the scalar function `of` the model's outputs, with s a constant of the sample that keeps the
    derivatives of q in range (`local_model`). Each value must depend on its own sample only. The graph of the
    gradients g = ∇q is built once; a product differentiates ⟨g, v⟩ through it: ∇ₓ⟨g, v⟩ = ∇²q v.
    """

    def __init__(self, model: nn.Module, x: Tensor, y: Tensor, of: Of) -> None:
        self._model, self._y, self._of = model, y, of
        self._x, self._gradient, self.log_scale = _differentiate(model, x, y, of, twice=True)
        self.gradient = self._gradient.detach().flatten(1)  # (n, d): ∇q; log_scale (n,) is log s

    def __call__(self, v: Tensor) -> Tensor:
        """Return ∇²q(xᵢ) vᵢ for vectors `v` (n, d)."""
        if not self._gradient.requires_grad:  # q is affine
            return torch.zeros_like(v)
        with explained():
            (product,) = torch.autograd.grad(
                self._gradient, self._x, v.view_as(self._x), retain_graph=True, materialize_grads=True
            )
        return product.flatten(1)

    def in_float64(self) -> "Hessian | None":
        """Return the operator of a copy of the model in float64; None where the model cannot be copied or run so."""
        try:
            return Hessian(copy.deepcopy(self._model).double(), self._x.detach().double(), self._y, self._of)
        except Exception:  # whatever a model of someone else has against float64
            return None

    def restricted_to(self, keep: Tensor) -> "Hessian":
        """Return the operator of the samples that the mask `keep` selects, on a smaller graph of its own."""
        return Hessian(self._model, self._x.detach()[keep], self._y[keep], self._of)


# More samples at once than this are no faster, whatever the memory.
LARGEST_CHUNK = 256


def chunks(model: nn.Module, x: Tensor, y: Tensor, of: Of, *, vectors: int, memory: int) -> Iterator[slice]:
    """Cut the batch so that a chunk's graph and `vectors` inputs per sample fit into `memory` bytes.

    One sample tells what a graph holds; a product needs as much again while it runs.
    """
    graphs = 2 if x.dtype == torch.float64 else 7  # products in float64 are on graphs of their own
    per_sample = vectors * x[0].nbytes + graphs * _held(model, x[:1], y[:1], of)
    size = max(1, min(LARGEST_CHUNK, memory // per_sample))
    for first in range(0, len(x), size):
        yield slice(first, first + size)


def _held(model: nn.Module, x: Tensor, y: Tensor, of: Of) -> int:
    """Return how many bytes the graph of a Hessian holds.

    The graph gets numbers in place of its tensors: with the tensors themselves it would hold its own results, and
    nothing could free it.
    """
    kept: list[Tensor] = []

    def pack(tensor: Tensor) -> int:
        kept.append(tensor)
        return len(kept) - 1

    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, kept.__getitem__):
            Hessian(model, x, y, of)
        return sum({tensor.data_ptr(): tensor.nbytes for tensor in kept}.values())
    finally:
        kept.clear()

"""Hessian-vector products of many samples at once, by two reverse passes over one retained graph."""

from collections.abc import Callable

import torch
from torch import Tensor

from lowcurve.errors import UserError


class Hessian:
    r"""The Hessians ∇²f(xᵢ), i = 1..n, as one linear operator on n flat vectors, shape (n, d).

    `function` maps (x (n, ...), y (n,)) to values f (n,), each of which depends on its own sample only.
    The graph of the gradients g = ∇f is built once; a product differentiates ⟨g, v⟩ through it: ∇ₓ⟨g, v⟩
    = ∇²f v.
    """

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor) -> None:
        self._function, self._y = function, y
        with torch.inference_mode(False), torch.enable_grad():
            self._x = x.detach().clone().requires_grad_()
            values = function(self._x, y)
            if values.shape != (len(x),):
                raise UserError(f"expected one value per sample, shape ({len(x)},), got {tuple(values.shape)}")
            if not values.requires_grad:
                raise UserError("the outputs do not depend on the inputs differentiably; is there a detach() inside?")
            (self._gradient,) = torch.autograd.grad(values.sum(), self._x, create_graph=True, materialize_grads=True)

    @property
    def gradient(self) -> Tensor:
        """The gradients ∇f(xᵢ), flat: (n, d)."""
        return self._gradient.detach().flatten(1)

    def __call__(self, v: Tensor) -> Tensor:
        """Return ∇²f(xᵢ) vᵢ for vectors `v` (n, d)."""
        if not self._gradient.requires_grad:  # f is affine
            return torch.zeros_like(v)
        (product,) = torch.autograd.grad(
            self._gradient, self._x, v.view_as(self._x), retain_graph=True, materialize_grads=True
        )
        return product.flatten(1)

    def restricted_to(self, keep: Tensor) -> "Hessian":
        """Return the operator of the samples that the mask `keep` selects, on a smaller graph of its own."""
        return Hessian(self._function, self._x.detach()[keep], self._y[keep])

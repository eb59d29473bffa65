"""CURE: curvature regularization by the change of the input gradient along the attack direction."""

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field
from torch import Tensor

from lowcurve.objectives.gradient import input_gradient, mean_square
from lowcurve.objectives.term import Term

if TYPE_CHECKING:
    from lowcurve.objectives.passes import Batch


def cure_direction(gradient: Tensor, length: float) -> Tensor:
    r"""Return :math:`z_i = h \, \mathrm{sign}(g_i) / \|\mathrm{sign}(g_i)\|_2`, detached; h is `length`.

    >>> import torch
    >>> cure_direction(torch.tensor([[2.0, -3.0, 0.0, 1.0, 1.0]]), length=1.0)
    tensor([[ 0.5000, -0.5000,  0.0000,  0.5000,  0.5000]])
    """
    signs = gradient.detach().sign()
    norms = signs.flatten(1).norm(dim=1).clamp_min(1.0)  # at least one entry of ±1, or a zero gradient
    return signs * (length / norms).reshape(-1, *[1] * (signs.ndim - 1))


def cure_penalty(there: Tensor, here: Tensor) -> Tensor:
    r"""Return :math:`\frac1N \sum_i \| \nabla\ell_i(x_i + z_i) - \nabla\ell_i(x_i) \|_2^2`.

    From Moosavi-Dezfooli et al. (2019). `here` and `there` are the input gradients at x and x + z. Where
    the loss is quadratic with Hessian H the summand is :math:`\|H z_i\|^2`.
    """
    return mean_square(there - here)


class CurePenalty(Term):
    """Adds CURE to the loss; x + z is a second forward, whose gradient is differentiated as well."""

    lambda_cure: float = Field(default=4e-3, ge=0, description="weight of CURE's E‖∇ℓ(x+z) − ∇ℓ(x)‖²")
    cure_step: float = Field(default=0.5, gt=0, description="length h of CURE's z, in pixels")

    input_gradients: ClassVar[bool] = True
    elsewhere: ClassVar[bool] = True

    def loss(self, batch: "Batch") -> Tensor:
        """λ E‖∇ℓ(x+z) − ∇ℓ(x)‖²."""
        here = batch.input_gradient
        x = (batch.x + cure_direction(here, self.cure_step)).detach().requires_grad_()
        there = input_gradient(batch.losses_at(x), x)
        return self.lambda_cure * cure_penalty(there, here)

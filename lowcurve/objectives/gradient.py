"""GradReg: the mean squared norm of the loss's gradient in the input, exactly or by differences."""

import torch
from torch import Tensor

from lowcurve.errors import UserError


def input_gradient(losses: Tensor, x: Tensor, create_graph: bool = True) -> Tensor:
    r"""Return :math:`g` with rows :math:`g_i = \nabla_{x_i} \sum_j \ell_j`, of the shape of `x`.

    `losses` has one entry :math:`\ell_j` per sample. Where samples do not meet,
    :math:`g_i = \nabla_{x_i} \ell_i`; batch norm in train mode lets :math:`\ell_j` depend on :math:`x_i`, and
    :math:`g_i` then contains that too.
    """
    if losses.shape != x.shape[:1] or not x.requires_grad:
        raise UserError(
            "a gradient penalty needs one loss per sample and an x that required gradients in the forward, "
            f"got losses {tuple(losses.shape)}, x {tuple(x.shape)} with requires_grad={x.requires_grad}; "
            "call x.requires_grad_() first and use reduction='none'"
        )
    (gradient,) = torch.autograd.grad(losses.sum(), x, create_graph=create_graph)
    return gradient


def mean_square(rows: Tensor) -> Tensor:
    """Return the mean over samples of ‖row‖₂².

    >>> float(mean_square(torch.tensor([[3.0, 4.0], [0.0, 1.0]])))
    13.0
    """
    return rows.square().sum() / len(rows)


def gradient_penalty(losses: Tensor, x: Tensor, create_graph: bool = True) -> Tensor:
    r"""Return :math:`P = \frac1N \sum_{i=1}^N \| \nabla_{x_i} \ell_i \|_2^2` (Drucker and Le Cun, 1992).

    `losses` are the N per-sample losses of a forward pass at `x`, so P does not depend on the batch size. The
    released code squares the gradient of the *mean* loss instead and multiplies by 1e5: at batch size 128 its
    weight 1e-3 is 1e5/128² · 1e-3 = 6.1e-3 here.

    >>> x = torch.tensor([[3.0, 4.0]], requires_grad=True)
    >>> float(gradient_penalty((x**2).sum(1) / 2, x).detach())
    25.0
    """
    return mean_square(input_gradient(losses, x, create_graph))


def largest_norm(rows: Tensor) -> Tensor:
    """Return the largest Euclidean norm of a row, never quite 0."""
    return rows.flatten(1).norm(dim=1).amax().clamp_min(torch.finfo(rows.dtype).tiny ** 0.5)

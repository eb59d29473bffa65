"""The data-free curvature penalty of an LCNN: smooth activations and batch norms of small gain."""

import torch
from torch import Tensor, nn

from lowcurve.layers.constants import log_betas, log_gammas


def curvature_penalty(model: nn.Module, beta: float = 1e-4, gamma: float = 1e-5) -> Tensor:
    r"""Return :math:`R = \lambda_\beta \sum_i \beta_i + \lambda_\gamma \sum_j |\log \gamma_j|`.

    :math:`\beta_i` is the sharpness of the i-th centered softplus, :math:`\gamma_j` the Lipschitz constant
    allowed to the j-th batch norm, `beta` and `gamma` are the weights :math:`\lambda`. The paper writes
    :math:`\log \gamma` and takes :math:`\gamma \ge 1` for granted; the absolute value makes :math:`\gamma =
    1` the minimum instead. A layer that is called several times counts once. A model without such layers
    has no penalty, 0.

    >>> from lowcurve.layers.softplus import CenteredSoftplus
    >>> model = nn.Sequential(CenteredSoftplus(init_beta=5.0), CenteredSoftplus(init_beta=3.0))
    >>> round(float(curvature_penalty(model, beta=0.1)), 6)
    0.8
    """
    sharpness, steepness = tuple(log_betas(model).values()), tuple(log_gammas(model).values())
    penalty = torch.zeros((), device=next((p.device for p in model.parameters()), None))
    if sharpness:  # one stack each: a handful of kernels, however deep the net
        penalty = penalty + beta * torch.stack(sharpness).exp().sum()
    if steepness:
        penalty = penalty + gamma * torch.stack(steepness).abs().sum()
    return penalty

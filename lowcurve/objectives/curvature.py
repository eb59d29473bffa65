"""The data-free curvature penalty of an LCNN: smooth activations and batch norms of small gain."""

import torch
from pydantic import Field
from torch import Tensor, nn

from lowcurve import checks
from lowcurve.layers.traits import learned_items
from lowcurve.objectives.term import Term


def curvature_penalty(model: nn.Module, beta: float = 1e-4, gamma: float = 1e-5) -> Tensor:
    r"""Return :math:`R = \lambda_\beta \sum_i \beta_i + \lambda_\gamma \sum_j |\log \gamma_j|`.

    :math:`\beta_i` is the sharpness of the i-th centered softplus (or of an activation that says so by
    `lowcurve.layers.traits.learned`), :math:`\gamma_j` the Lipschitz constant allowed to the j-th batch norm,
    `beta` and `gamma` are the weights :math:`\lambda`. The paper writes :math:`\log \gamma` and takes
    :math:`\gamma \ge 1` for granted; the absolute value makes :math:`\gamma = 1` the minimum instead. A layer that
    is called several times counts once. A model without such layers has no penalty, 0.

    >>> from lowcurve.layers.softplus import CenteredSoftplus
    >>> model = nn.Sequential(CenteredSoftplus(init_beta=5.0), CenteredSoftplus(init_beta=3.0))
    >>> round(float(curvature_penalty(model, beta=0.1)), 6)
    0.8
    """
    checks.modules(model=model)
    checks.number(least=0, beta=beta, gamma=gamma)
    penalty = torch.zeros((), device=next((p.device for p in model.parameters()), None))
    items = learned_items(model)
    if logs := tuple(item.log for item in items if item.kind == "beta"):
        penalty = penalty + beta * _joined(logs).exp().sum()
    if logs := tuple(item.log for item in items if item.kind == "gamma"):
        penalty = penalty + gamma * _joined(logs).abs().sum()
    return penalty


def _joined(logs: tuple[Tensor, ...]) -> Tensor:
    """All numbers as one tensor: a handful of kernels, however deep the net."""
    return torch.stack(logs) if all(log.ndim == 0 for log in logs) else torch.cat([log.flatten() for log in logs])


class CurvaturePenalty(Term):
    """Adds the penalty to the loss."""

    lambda_beta: float = Field(default=1e-4, ge=0, description="weight of Σβ")
    lambda_gamma: float = Field(default=1e-5, ge=0, description="weight of Σ|log γ|")

    def penalty(self, model: nn.Module) -> Tensor:
        """λβ Σβ + λγ Σ|log γ|."""
        return curvature_penalty(model, self.lambda_beta, self.lambda_gamma)

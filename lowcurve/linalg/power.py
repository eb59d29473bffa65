"""Power iteration, the paper's way to a Hessian norm; kept for comparison with `lanczos`."""

import torch
from torch import Tensor
from torch.nn import functional as F

from lowcurve.linalg.lanczos import Extreme, Operator


def power_iteration(operator: Operator, start: Tensor, *, iterations: int) -> Extreme:
    r"""Return |uᵀHu| and ‖Hu − (uᵀHu)u‖ for the vector u that `iterations` products lead to from `start`.

    The last product serves the Rayleigh quotient. On indefinite matrices with eigenvalues near ±λ the
    quotient can be far below λ although u has converged to their span.
    """
    u = F.normalize(start, dim=1)
    for _ in range(iterations - 1):
        u = F.normalize(operator(u), dim=1)
    product = operator(u)
    rayleigh = (u * product).sum(dim=1)
    residual = (product - rayleigh[:, None] * u).norm(dim=1)
    count = torch.full((len(u),), iterations)
    return Extreme(rayleigh.abs().double().cpu(), residual.double().cpu(), count, u)

"""Which operator computes a batch norm, with what follows it? None where PyTorch must do it, or refuse it."""

from torch import Tensor

from lowcurve.kernels.affine import affine_norm, takes_affine
from lowcurve.kernels.engine import is_transformed
from lowcurve.kernels.norm import FollowingActivation, Statistics, batch_norm


def batch_norm_by_operator(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    statistics: Statistics,
    training: bool,
    activation: FollowingActivation | None = None,
) -> Tensor | None:
    """Return what PyTorch's `batch_norm` would, activated; None for tracers, wrong shapes, or eval mode that learns."""
    mean, var, _, eps = statistics
    if is_transformed(x) or any(t is not None and t.shape != x.shape[1:2] for t in (weight, bias, mean, var)):
        return None
    if training:  # a single value per channel is for PyTorch to refuse
        return batch_norm(x, weight, bias, statistics, activation) if x.numel() > x.shape[1] and eps > 0 else None
    if mean is None or var is None or not takes_affine(weight, bias, activation and activation.log_beta):
        return None
    return affine_norm(x, weight, bias, mean, var, eps, activation)

r"""γ-Lipschitz batch normalization: how steep may a batch norm be at inference, and who decides?

.. math:: y = \min\left(1, \frac{γ}{‖\mathrm{BN}‖}\right) \mathrm{BN}(x), \qquad
          ‖\mathrm{BN}‖ = \max_c \frac{|w_c|}{\sqrt{\mathrm{var}_c + ε}}

over the running variances, with w = 1 where the layer has no affine part (Srinivas et al. 2022, §3.4.2), so that
the eval-mode Lipschitz constant is exactly min(γ, ‖BN‖). In training the batch's own statistics normalize, and the
constant holds only as far as the running ones have caught up.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class _LipschitzBatchNorm(nn.Module):
    """What the 1d and 2d layers share: a child `norm`, which conversion for several processes may replace, and γ."""

    _norm: type[nn.BatchNorm1d] | type[nn.BatchNorm2d]

    def __init__(
        self,
        num_features: int,
        init_gamma: float = 10.0,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = False,
    ) -> None:
        super().__init__()
        if not init_gamma > 0 or math.isinf(init_gamma):
            raise ValueError(f"init_gamma must be a positive number, got {init_gamma}")
        self.norm: nn.BatchNorm1d | nn.BatchNorm2d = self._norm(num_features, eps, momentum, affine=affine)
        self.log_gamma = nn.Parameter(torch.tensor(math.log(init_gamma)))

    @property
    def gamma(self) -> Tensor:
        """The largest slope that the layer may have, a 0-dimensional tensor."""
        return self.log_gamma.exp()

    def lipschitz(self) -> Tensor:
        """The exact eval-mode Lipschitz constant min(γ, ‖BN‖); without affine part ‖BN‖ = 1 / min std."""
        return torch.minimum(self.gamma, self._steepest())

    def factor(self) -> Tensor:
        """The factor min(1, γ / ‖BN‖) that multiplies the batch norm."""
        return (self.gamma / self._steepest()).clamp_max(1.0)

    def _steepest(self) -> Tensor:
        norm = self.norm
        assert norm.running_var is not None
        gains = (norm.running_var + norm.eps).rsqrt()
        return (gains if norm.weight is None else gains * norm.weight.abs()).max()

    def forward(self, x: Tensor) -> Tensor:
        """Normalize x; running statistics are updated once, in training mode."""
        norm, factor = self.norm, self.factor()
        if type(norm) is not self._norm:  # one whose batch statistics span processes
            return norm(x) * factor
        norm._check_input_dim(x)
        update = self.training and norm.track_running_stats
        momentum = norm.momentum
        if update:
            norm.num_batches_tracked.add_(1)  # type: ignore[union-attr]
            momentum = 1.0 / float(norm.num_batches_tracked) if momentum is None else momentum  # type: ignore[arg-type]
        weight = factor.expand(norm.num_features) if norm.weight is None else norm.weight * factor
        bias = None if norm.bias is None else norm.bias * factor
        keep = update or not self.training
        mean, variance = (norm.running_mean, norm.running_var) if keep else (None, None)
        return F.batch_norm(x, mean, variance, weight, bias, self.training, momentum or 0.0, norm.eps)

    def extra_repr(self) -> str:
        """Show γ."""
        return f"gamma={float(self.log_gamma.detach().exp()):.4g}"


class LipschitzBatchNorm1d(_LipschitzBatchNorm):
    """γ-Lipschitz batch norm of inputs (N, C) or (N, C, L).

    >>> layer = LipschitzBatchNorm1d(4, init_gamma=0.5).eval()
    >>> round(float(layer.lipschitz().detach()), 6)
    0.5
    """

    _norm = nn.BatchNorm1d


class LipschitzBatchNorm2d(_LipschitzBatchNorm):
    """γ-Lipschitz batch norm of images (N, C, H, W)."""

    _norm = nn.BatchNorm2d

r"""γ-Lipschitz batch normalization: how steep may a batch norm be at inference, and who decides?

.. math:: y = \min\left(1, \frac{γ}{‖\mathrm{BN}‖}\right) \mathrm{BN}(x), \qquad
          ‖\mathrm{BN}‖ = \max_c \frac{|w_c|}{\sqrt{\mathrm{var}_c + ε}}

over the running variances, with w = 1 where the layer has no affine part (Srinivas et al. 2022, §3.4.2), so that
the eval-mode Lipschitz constant is exactly min(γ, ‖BN‖). In training the batch's own statistics normalize, and the
constant holds only as far as the running ones have caught up.

The factor has kinks, where the following derivatives hold. Where ‖BN‖ ≤ γ, at equality too, it is the constant 1: γ
gets no gradient, and the weights get that of a plain batch norm, so that weights of 0 learn. Where several channels
are the steepest, each gets an equal share of the factor's gradient.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lowcurve import checks
from lowcurve.compat import check_input_dimensions
from lowcurve.errors import UserError
from lowcurve.kernels.batchnorm import batch_norm_by_operator
from lowcurve.kernels.engine import bounded_exp, in_backward, is_transformed, repeated_in_backward, snapshot
from lowcurve.kernels.norm import Statistics
from lowcurve.kernels.reference.scales import factor, scaled_weight, steepest
from lowcurve.layers.counting import count_batch
from lowcurve.layers.traits import Learned, learned


class _LipschitzBatchNorm(nn.Module):
    """What the 1d and 2d layers share: a child `norm`, which conversion for several processes may replace, and γ."""

    _norm: type[nn.BatchNorm1d] | type[nn.BatchNorm2d]
    shared_scale: tuple[Tensor, Tensor | None] | None = (
        None  # `scaled()`, where it was computed for all layers of a model
    )
    scales_once: bool = False  # whether `shared_scale` is for one use
    last: tuple[Tensor, Tensor] | None = None  # 1/std and a sum of the input of the last forward in training

    def __init__(
        self,
        num_features: int,
        init_gamma: float = 10.0,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = False,
    ) -> None:
        super().__init__()
        checks.whole(1, 2**31 - 1, num_features=num_features)
        checks.number(above=0, init_gamma=init_gamma, eps=eps)
        checks.number(least=0, momentum=0.1 if momentum is None else momentum)
        checks.flag(affine=affine)
        self.norm: nn.BatchNorm1d | nn.BatchNorm2d = self._norm(num_features, eps, momentum, affine=affine)
        self.log_gamma = nn.Parameter(torch.tensor(math.log(init_gamma)))

    @property
    def gamma(self) -> Tensor:
        """The largest slope that the layer may have, a 0-dimensional tensor."""
        return bounded_exp(self.log_gamma)

    def lipschitz(self) -> Tensor:
        """The exact eval-mode Lipschitz constant min(γ, ‖BN‖); without affine part ‖BN‖ = 1 / min std."""
        return torch.minimum(self.gamma, self._steepest())

    def factor(self) -> Tensor:
        """The factor min(1, γ / ‖BN‖) that multiplies the batch norm."""
        return factor(self.gamma, self._steepest())

    def scaled(self) -> tuple[Tensor, Tensor | None]:
        """The batch norm's weight and bias times the factor, which is what it is computed with."""
        return _scaled(self.gamma, self._gains(), self.norm.weight, self.norm.bias)

    def affine(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """`scaled()` for a forward of x: a repetition inside a backward (checkpointing) scales as the forward did."""
        if not repeated_in_backward() and (torch.is_grad_enabled() or not self.training):
            shared = self.shared_scale  # checkpointing has no gradients, or listens to what is saved
            if self.scales_once and self.training:
                self.shared_scale = None  # used again in the same forward, the layer has moved its variances
            return shared or self.scaled()
        if not self.training or is_transformed(x):
            return self.scaled()
        seen = x.detach()[:, 0].sum()
        if not in_backward():
            self.last = self._gains(), seen
        elif self.last is None or not torch.equal(self.last[1], seen):
            raise UserError(
                f"expected a checkpointed {type(self).__name__} to repeat its last forward, got an earlier one, since "
                "when its running variance has moved; call backward before the next forward"
            )
        return _scaled(self.gamma, self.last[0], self.norm.weight, self.norm.bias)

    def _gains(self) -> Tensor:
        """1/std of each channel, by the running variances."""
        variance = self.norm.running_var
        assert variance is not None
        if self.training and torch.compiler.is_compiling():
            variance = snapshot(variance)
        return (variance + self.norm.eps).rsqrt()

    def _steepest(self) -> Tensor:
        return steepest(self._gains(), self.norm.weight).squeeze()

    def forward(self, x: Tensor) -> Tensor:
        """Normalize x; running statistics are updated once, in training mode."""
        norm = self.norm
        if type(norm) is not self._norm:  # one whose batch statistics span processes
            return norm(x) * self.factor()
        check_input_dimensions(norm, x)
        weight, bias = self.affine(x)
        moved = statistics(norm, self.training)
        y = batch_norm_by_operator(x, weight, bias, Statistics(*moved, norm.eps), self.training)
        if y is not None:
            return y
        mean, variance, momentum = moved
        if not self.training:  # PyTorch's CPU backward takes them, and weights, to be packed
            mean, variance = (None if t is None else t.contiguous() for t in (mean, variance))
        return F.batch_norm(x, mean, variance, weight, bias, self.training, momentum, norm.eps)

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


@learned.register
def _learned(module: _LipschitzBatchNorm) -> tuple[Learned, ...]:
    return (Learned("gamma", module.log_gamma),)


def statistics(norm: nn.BatchNorm1d | nn.BatchNorm2d, training: bool) -> tuple[Tensor | None, Tensor | None, float]:
    """Return the running statistics that a forward uses or moves, and by how much; in training count the batch.

    A forward inside a backward repeats an earlier one, which has moved them, and gets copies.
    """
    momentum = norm.momentum
    if training and not norm.track_running_stats:
        return None, None, 0.0
    if training and in_backward():
        mean, variance = (None if t is None else t.clone() for t in (norm.running_mean, norm.running_var))
        return mean, variance, 0.0
    if training and norm.num_batches_tracked is not None:
        count_batch(norm.num_batches_tracked, now=momentum is None)
        momentum = 1.0 / float(norm.num_batches_tracked) if momentum is None else momentum
    return norm.running_mean, norm.running_var, momentum or 0.0


def _scaled(gamma: Tensor, gains: Tensor, weight: Tensor | None, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Weight and bias times min(1, γ / ‖BN‖)."""
    f = factor(gamma, steepest(gains, weight))
    return scaled_weight(gains, weight, f), None if bias is None else bias * f

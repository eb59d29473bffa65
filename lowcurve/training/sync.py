"""How do batch statistics span processes? By sums that can be differentiated twice, on CPU and GPU alike.

PyTorch's `SyncBatchNorm` needs GPUs and has no double backward, which the gradient penalties need.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from lowcurve.compat import BATCH_NORMS, BatchNorm


class _Sum(torch.autograd.Function):
    """The sum over processes; its derivative is the sum of the derivatives, again over processes."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        total = x.contiguous().clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        total: Tensor = _Sum.apply(gradient)
        return total


class GlobalBatchNorm(BatchNorm):
    """Batch norm with the mean and variance of the batches of all processes together."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalize x; in training the running statistics follow, as those of `nn.BatchNorm2d` do."""
        if not self.training:
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps)
        axes = [axis for axis in range(x.ndim) if axis != 1]
        shape = [1, -1, *[1] * (x.ndim - 2)]
        count = x.numel() // x.shape[1] * dist.get_world_size()  # every process has an equal share
        mean = _Sum.apply(x.sum(axes)) / count
        centered = x - mean.view(shape)
        variance = _Sum.apply(centered.square().sum(axes)) / count
        self._follow(mean.detach(), variance.detach() * (count / max(count - 1, 1)))
        y = centered * (variance + self.eps).rsqrt().view(shape)
        if self.weight is not None:
            y = y * self.weight.view(shape) + self.bias.view(shape)
        return y

    @torch.no_grad()
    def _follow(self, mean: Tensor, variance: Tensor) -> None:
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked.add_(1)
        share = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean, share)
        self.running_var.lerp_(variance, share)


def synchronize(module: nn.Module) -> nn.Module:
    """Put a `GlobalBatchNorm` in the place of every batch norm below `module`, with its state; names stay."""
    for name, child in module.named_children():
        if isinstance(child, BATCH_NORMS):
            norm = GlobalBatchNorm(
                child.num_features, child.eps, child.momentum, child.affine, child.track_running_stats
            )
            if (sample := next(iter(child.state_dict().values()), None)) is not None:
                norm.to(sample.device, sample.dtype)
            norm.load_state_dict(child.state_dict())
            module.add_module(name, norm.train(child.training))
        else:
            synchronize(child)
    return module

"""A small convolutional net that can be certified: no batch norm, no max-pooling, averaged residuals.

Every module has a known Lipschitz constant and a known curvature, so that after `convert` (unit operator norms,
centered softplus) the bounds of `lowcurve.guarantees` stay small. What lets such a net train without batch norm:
averaged residuals (x + F(x)) / 2, strided convolutions instead of pooling (which would shrink the signal), a head
that sees every position, an initialization that keeps norms, and pixels stretched tenfold by the first layer. The
stretch cancels in every certificate, which compares margins with slopes, and gives cross-entropy logits of a size
that a map of slope 1 on [0, 1] pixels could not reach.
"""

from collections.abc import Callable

import torch
from torch import nn

from lowcurve.layers.residual import AveragedResidual, Normalize
from lowcurve.models.shape import ImageSize, checked, height_width


@checked
def convnet(
    num_classes: int = 10,
    in_channels: int = 3,
    width: int = 64,
    residual: str = "mean",
    activation: Callable[[], nn.Module] = nn.ReLU,
    image_size: ImageSize = 32,
) -> nn.Sequential:
    """Five convolutions, two of them in averaged residuals and two that halve the image, and one linear layer."""
    height, breadth = height_width(image_size, smallest=4)
    net = nn.Sequential(
        Normalize(mean=0.5, std=0.1),
        nn.Conv2d(in_channels, width, 3, padding=1),
        activation(),
        _residual(width, activation),
        nn.Conv2d(width, 2 * width, 2, stride=2),
        activation(),
        _residual(2 * width, activation),
        nn.Conv2d(2 * width, 2 * width, 2, stride=2),
        activation(),
        nn.Flatten(),
        nn.Linear(2 * width * (height // 4) * (breadth // 4), num_classes),
    )
    net.apply(_keep_norms)
    return net


def _residual(channels: int, activation: Callable[[], nn.Module]) -> nn.Module:
    return AveragedResidual(nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), activation()))


@torch.no_grad()
def _keep_norms(module: nn.Module) -> None:
    """Start with orthogonal maps: a 3×3 kernel acts at its center only, which preserves norms at every frequency."""
    if not isinstance(module, nn.Conv2d | nn.Linear):
        return
    assert module.bias is not None
    nn.init.zeros_(module.bias)
    if isinstance(module, nn.Conv2d) and module.stride == (1, 1):
        nn.init.zeros_(module.weight)
        nn.init.orthogonal_(module.weight[:, :, 1, 1])
    else:
        nn.init.orthogonal_(module.weight)

"""A small convolutional net that can be certified: no batch norm, no max-pooling, averaged residuals.

Every module has a known Lipschitz constant and a known curvature, so that after `convert` (unit operator
norms, centered softplus) the bounds of `lowcurve.guarantees` stay small. Averaged residuals (x + F(x)) / 2, a
head that sees every position and orthogonal initialization let such a net train without batch norm.
"""

from collections.abc import Callable

from torch import nn

from lowcurve.layers.residual import AveragedResidual
from lowcurve.models.shape import ImageSize, height_width


def convnet(
    num_classes: int = 10,
    in_channels: int = 3,
    width: int = 64,
    residual: str = "mean",
    activation: Callable[[], nn.Module] = nn.ReLU,
    image_size: ImageSize = 32,
) -> nn.Sequential:
    """Two stages of two convolutions, each stage halved by average pooling, and one linear layer."""
    height, breadth = height_width(image_size, smallest=4)
    layers: list[nn.Module] = []
    channels = in_channels
    for out_channels in (width, 2 * width):
        branch = nn.Sequential(nn.Conv2d(out_channels, out_channels, 3, padding=1), activation())
        layers += [
            nn.Conv2d(channels, out_channels, 3, padding=1),
            activation(),
            AveragedResidual(branch),
            nn.AvgPool2d(2),
        ]
        channels = out_channels
    features = channels * (height // 4) * (breadth // 4)
    net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(features, num_classes))
    for module in net.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.orthogonal_(module.weight)
            nn.init.zeros_(module.bias)
    return net

"""VGG-11 as the paper's released code has it: ten 3×3 convolutions with batch norm and one linear layer."""

from collections.abc import Callable

from torch import nn

from lowcurve.layers.chain import Chain
from lowcurve.models.shape import ImageSize, checked

# Multiples of the width; each stage has two convolutions and ends in a 2×2 max-pooling.
STAGES = (1, 2, 4, 8, 8)


@checked
def vgg11(
    num_classes: int = 10,
    in_channels: int = 3,
    width: int = 64,
    residual: str = "mean",
    activation: Callable[[], nn.Module] = nn.ReLU,
    image_size: ImageSize = 32,
) -> nn.Sequential:
    """VGG with 10 convolutions and 1 linear layer, each activation an own module; any image size.

    Max-pooling has Lipschitz constant 1 but no second derivative at ties: this net can be made low-curvature
    almost everywhere, not certified to second order (`convnet` can).
    """
    layers: list[nn.Module] = []
    channels = in_channels
    for multiple in STAGES:
        for _ in range(2):
            layers += [
                nn.Conv2d(channels, multiple * width, 3, padding=1, bias=False),
                nn.BatchNorm2d(multiple * width),
                activation(),
            ]
            channels = multiple * width
        layers.append(nn.MaxPool2d(2, ceil_mode=True))  # ceil: images below 32 pixels shrink to 1, never to 0
    return Chain(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes))

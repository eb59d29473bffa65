"""A multi-layer perceptron for flat vectors and small images."""

from collections.abc import Callable

from torch import nn

from lowcurve.models.shape import ImageSize, checked, height_width

HIDDEN_LAYERS = 3


@checked
def mlp(
    num_classes: int = 10,
    in_channels: int = 3,
    width: int = 64,
    residual: str = "mean",
    activation: Callable[[], nn.Module] = nn.ReLU,
    image_size: ImageSize = 32,
) -> nn.Sequential:
    """Three hidden layers of `width` units on the flattened input.

    >>> mlp(num_classes=2, in_channels=2, width=8, image_size=())[1]
    Linear(in_features=2, out_features=8, bias=True)
    """
    height, breadth = height_width(image_size)
    features = in_channels * height * breadth
    layers: list[nn.Module] = [nn.Flatten()]
    for _ in range(HIDDEN_LAYERS):
        layers += [nn.Linear(features, width), activation()]
        features = width
    return nn.Sequential(*layers, nn.Linear(features, num_classes))

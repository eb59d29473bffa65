"""A small convolutional net of slope 1: an image cut into patches, 1-Lipschitz residual blocks, one linear layer.

Nothing in it shrinks what it does not have to: pixels are rearranged, not pooled, and a block subtracts from x what it
does not need. So slopes stay near 1, and a margin is nearly a distance, whatever the weights. After `convert` the last
layer has norm 1 and the activations are centered softplus, so that certificates use its curvature as well.
"""

from collections.abc import Callable

from torch import nn

from lowcurve.layers.lipschitz import LipschitzResidual2d
from lowcurve.layers.maxmin import AlmostOrthogonal2d, MaxMin
from lowcurve.layers.residual import Normalize
from lowcurve.models.shape import ImageSize, checked, height_width

PATCH = 4  # side of the squares that become one pixel


@checked
def lipnet(
    num_classes: int = 10,
    in_channels: int = 3,
    width: int = 64,
    residual: str = "mean",
    activation: Callable[[], nn.Module] = nn.ReLU,
    image_size: ImageSize = 32,
) -> nn.Sequential:
    """Three blocks of 3×3 convolutions on patches of 4×4, two on patches of 8×8; `width` units inside, then twice that.

    >>> lipnet(width=8, in_channels=1, image_size=(8, 12))[-1]
    Linear(in_features=128, out_features=10, bias=True)
    """
    height, breadth = (-(-side // (2 * PATCH)) * 2 * PATCH for side in height_width(image_size, smallest=PATCH))
    channels = in_channels * PATCH**2
    last = nn.Linear(in_channels * height * breadth, num_classes)
    nn.init.orthogonal_(last.weight)
    nn.init.zeros_(last.bias)
    return nn.Sequential(
        Normalize(mean=0.5, std=1.0),
        *_enlarged(image_size, height, breadth),
        nn.PixelUnshuffle(PATCH),
        *(_block(channels, width, 3, activation) for _ in range(3)),
        nn.PixelUnshuffle(2),
        _block(4 * channels, 2 * width, 1, activation),
        _block(4 * channels, 2 * width, 3, activation),
        nn.Flatten(),
        last,
    )


def _block(channels: int, hidden: int, kernel: int, activation: Callable[[], nn.Module]) -> nn.Module:
    """Return a residual block; with MaxMin, of which it would not be 1-Lipschitz, two layers of the same sizes."""
    made = activation()
    if not isinstance(made, MaxMin):
        return LipschitzResidual2d(channels, hidden, kernel, made)
    sizes = ((channels, hidden), (hidden, channels))
    return nn.Sequential(*(part for size in sizes for part in (AlmostOrthogonal2d(*size, kernel), MaxMin())))


def _enlarged(image_size: ImageSize, height: int, breadth: int) -> list[nn.Module]:
    """Return the padding that makes an image a whole number of patches; none where it is one."""
    down, right = height - height_width(image_size)[0], breadth - height_width(image_size)[1]
    return [nn.ZeroPad2d((0, right, 0, down))] if down or right else []

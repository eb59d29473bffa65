"""ResNet-18 and ResNet-34 for small images (He et al., 2016), joined as the paper or as the textbook does."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from lowcurve.layers.chain import Chain, activate
from lowcurve.models.shape import RESIDUALS, ImageSize, checked


class BasicBlock(nn.Module):
    """Two 3×3 convolutions F beside a shortcut S: x ↦ a(after · (F(before · x) + S(before · x))).

    With `residual="mean"`, before = 1/√2 and after = 1/2, as in the paper's released code: the block's gain
    is at most 1/√2 when F and S have gain 1. With `"sum"` both factors are 1. S is the identity, or a 1×1
    convolution with batch norm where the shape changes.
    """

    def __init__(
        self,
        in_channels: int,
        channels: int,
        stride: int,
        residual: str,
        activation: Callable[[], nn.Module],
    ) -> None:
        super().__init__()
        self.before, self.after = RESIDUALS[residual]
        self.body = Chain(
            nn.Conv2d(in_channels, channels, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            activation(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_channels, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )
        self.activation = activation()

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, in_channels, H, W) to (N, channels, H/stride, W/stride)."""
        x = self.before * x
        if torch.jit.is_scripting():
            return self.activation(self.after * (self.body(x) + self.shortcut(x)))
        else:  # noqa: RET505 (TorchScript does not look in here)
            return activate(self.activation, self.body, x, self.shortcut(x), self.after)


def resnet(
    depths: tuple[int, int, int, int],
    num_classes: int,
    in_channels: int,
    width: int,
    residual: str,
    activation: Callable[[], nn.Module],
) -> nn.Sequential:
    """Build four stages of `depths` blocks; each but the first halves the image and doubles the width."""
    layers: list[nn.Module] = [
        nn.Conv2d(in_channels, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        activation(),
    ]
    channels = width
    for stage, depth in enumerate(depths):
        for block in range(depth):
            stride = 2 if stage > 0 and block == 0 else 1
            layers.append(BasicBlock(channels, width * 2**stage, stride, residual, activation))
            channels = width * 2**stage
    return Chain(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes))


@checked
def resnet18(
    num_classes: int = 10,
    in_channels: int = 3,
    width: int = 64,
    residual: str = "mean",
    activation: Callable[[], nn.Module] = nn.ReLU,
    image_size: ImageSize = 32,
) -> nn.Sequential:
    """ResNet-18: 17 activations and 20 batch norms; any image size.

    >>> sum(isinstance(module, nn.BatchNorm2d) for module in resnet18(width=2).modules())
    20
    """
    return resnet((2, 2, 2, 2), num_classes, in_channels, width, residual, activation)


@checked
def resnet34(
    num_classes: int = 10,
    in_channels: int = 3,
    width: int = 64,
    residual: str = "mean",
    activation: Callable[[], nn.Module] = nn.ReLU,
    image_size: ImageSize = 32,
) -> nn.Sequential:
    """ResNet-34: 33 activations and 36 batch norms; any image size."""
    return resnet((3, 4, 6, 3), num_classes, in_channels, width, residual, activation)

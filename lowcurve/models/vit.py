"""A small vision transformer: three convolutions make tokens of patches, four blocks of attention and MLP follow.

Convolutions in front (Xiao et al., 2021) let so small a one learn from few images. Blocks normalize first, so that an
untrained one is nearly the identity: x + A(N(x)), then x + M(N(x)). Surgery replaces the activations and gives the
linear layers of the MLPs unit norms; attention and layer norms stay, as no constant holds for every input: what they do
at given inputs is measured (`lowcurve.block_geometry`).
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lowcurve.layers.residual import Normalize
from lowcurve.models.shape import ImageSize, checked, height_width

DEPTH = 4
HEAD = 32  # width of one head
EXPANSION = 2  # units inside an MLP, as a multiple of the width


class Attention(nn.Module):
    """Self-attention of tokens (N, T, width): softmax(Q Kᵀ / √d) V for each head, joined by a linear layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // HEAD if width % HEAD == 0 else 1
        self.inner, self.outer = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, T, width) to the same shape."""
        q, k, v = self.inner(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)  # each (N, heads, T, d)
        return self.outer(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class EncoderBlock(nn.Module):
    """x ↦ y + M(N(y)) with y = x + A(N(x)): attention A, an MLP M, layer norms N."""

    def __init__(self, width: int, activation: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.attention = nn.Sequential(nn.LayerNorm(width), Attention(width))
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, EXPANSION * width), activation(), nn.Linear(EXPANSION * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, T, width) to the same shape."""
        x = x + self.attention(x)
        return x + self.mlp(x)


class Tokens(nn.Module):
    """An image as a sequence of tokens, one per 4×4 pixels, each with what is learned of its place."""

    def __init__(self, in_channels: int, width: int, count: int, activation: Callable[[], nn.Module]) -> None:
        super().__init__()
        first, second = max(width // 4, 1), max(width // 2, 1)
        self.stem = nn.Sequential(
            nn.Conv2d(in_channels, first, 3, padding=1),
            activation(),
            nn.Conv2d(first, second, 3, stride=2, padding=1),
            activation(),
            nn.Conv2d(second, width, 3, stride=2, padding=1),
        )
        self.place = nn.Parameter(0.02 * torch.randn(1, count, width))

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, C, H, W) to (N, T, width)."""
        return self.stem(x).flatten(2).transpose(1, 2) + self.place


class MeanOfTokens(nn.Module):
    """What the last layer sees of all tokens."""

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, T, width) to (N, width)."""
        return x.mean(dim=1)


@checked
def vit(
    num_classes: int = 10,
    in_channels: int = 3,
    width: int = 64,
    residual: str = "mean",
    activation: Callable[[], nn.Module] = nn.ReLU,
    image_size: ImageSize = 32,
) -> nn.Sequential:
    """Four blocks on tokens of 4×4 pixels; heads of 32 where the width allows it, else one. Residuals are sums.

    >>> vit(width=64, activation=nn.GELU)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """
    height, breadth = (-(-side // 4) for side in height_width(image_size))
    return nn.Sequential(
        Normalize(mean=0.5, std=0.25),
        Tokens(in_channels, width, height * breadth, activation),
        *(EncoderBlock(width, activation) for _ in range(DEPTH)),
        nn.LayerNorm(width),
        MeanOfTokens(),
        nn.Linear(width, num_classes),
    )

r"""What do other 1-Lipschitz networks consist of? MaxMin, and layers divided so that no norm exceeds 1.

MaxMin sorts channels in pairs: it loses nothing (its Jacobian is a permutation), and has a kink wherever two are alike,
so that its networks are certified by their slope alone. `AlmostOrthogonal2d` applies T^{-1/2} W, with T as
in `lowcurve.layers.lipschitz`: W Wᵀ ⪯ T, hence ‖T^{-1/2} W‖ ≤ 1 (Prach and Lampert 2022).
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lowcurve import checks
from lowcurve.layers.lipschitz import FLOOR, check_kernel, overlaps
from lowcurve.layers.traits import plain, smooth


class MaxMin(nn.Module):
    """Sort pairs of channels (dimension 1): of x_2i and x_2i+1 the first output is the larger.

    >>> MaxMin()(torch.tensor([[1.0, 3.0, 5.0, 2.0]])).tolist()
    [[3.0, 1.0, 5.0, 2.0]]
    """

    def forward(self, x: Tensor) -> Tensor:
        """Sort each pair; the number of channels is even."""
        pairs = x.unflatten(1, (-1, 2))
        return torch.stack([pairs.amax(2), pairs.amin(2)], dim=2).flatten(1, 2)


class AlmostOrthogonal2d(nn.Module):
    """A convolution that keeps an image's size, of norm 1 at most: W is divided by the square root of its row sums.

    It begins as copies of its input, or means of it, beside a little noise: random kernels would be divided by much.

    >>> layer = AlmostOrthogonal2d(3, 5, kernel_size=1)
    >>> float(torch.linalg.matrix_norm(layer.divided().detach().flatten(1), ord=2)) <= 1.00001
    True
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int = 3) -> None:
        super().__init__()
        checks.whole(1, 2**31 - 1, in_channels=in_channels, out_channels=out_channels)
        check_kernel(kernel_size)
        self.weight = nn.Parameter(torch.empty(out_channels, in_channels, kernel_size, kernel_size))
        self.bias = nn.Parameter(torch.zeros(out_channels))
        nn.init.normal_(self.weight, std=0.01 / (in_channels**0.5 * kernel_size))
        with torch.no_grad():
            self.weight[:, :, kernel_size // 2, kernel_size // 2] += _copies(out_channels, in_channels)

    def divided(self) -> Tensor:
        """T^{-1/2} W; in eval mode computed in float64 and then rounded, so that nothing depends on the way."""
        weight = self.weight if self.training else self.weight.double()
        sums = overlaps(weight).sum(1).clamp_min(FLOOR)
        return (weight * sums.rsqrt().view(-1, 1, 1, 1)).to(self.weight.dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Convolve."""
        return F.conv2d(x, self.divided(), self.bias, padding=self.weight.shape[-1] // 2)

    def extra_repr(self) -> str:
        """Show the sizes."""
        return f"{self.weight.shape[1]}, {self.weight.shape[0]}, kernel_size={self.weight.shape[-1]}"


def _copies(rows: int, columns: int) -> Tensor:
    """Return a matrix with 1 where row and column agree modulo the smaller number of them, rows of norm 1."""
    smaller = min(rows, columns)
    matrix = torch.eye(smaller).repeat(-(-rows // smaller), -(-columns // smaller))[:rows, :columns]
    return matrix / matrix.norm(dim=1, keepdim=True)


@smooth.register
def _smooth(module: AlmostOrthogonal2d) -> bool:
    return True


@plain.register
@torch.no_grad()
def _plain(module: AlmostOrthogonal2d) -> nn.Module:
    with torch.device("meta"):  # no weights are drawn that others take their place
        layer = nn.Conv2d(
            module.weight.shape[1], module.weight.shape[0], kernel := module.weight.shape[-1], 1, kernel // 2
        )
    layer.weight = nn.Parameter(module.divided(), module.weight.requires_grad)
    layer.bias = nn.Parameter(module.bias.clone(), module.bias.requires_grad)
    return layer

"""How are training images varied? Whole batches of tensors at once, on their device, from draws per epoch.

Both functions copy rows by `index_select`, 5 times faster on a CPU than boolean masks or fancy indexing.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

PADDING = 4


def crop(images: Tensor, draws: Tensor) -> Tensor:
    """Pad each image by 4 black pixels on every side and cut a window of its own size at a random place.

    Args:
        images: (N, C, H, W), any dtype.
        draws: (N,) integers; the window's corner (top, left) is the draw modulo 81, in base 9.
    """
    count, channels, height, width = images.shape
    padded = F.pad(images, (PADDING,) * 4).contiguous()
    stride_n, stride_c, stride_h, _ = padded.stride()
    corner = draws % (2 * PADDING + 1) ** 2
    top, left = corner // (2 * PADDING + 1), corner % (2 * PADDING + 1)
    arange = torch.arange(max(count, channels, height), device=images.device)
    starts = (arange[:count] * stride_n + top * stride_h + left).view(-1, 1, 1)
    starts = starts + arange[:channels].view(-1, 1) * stride_c + arange[:height] * stride_h  # (N, C, H)
    rows = padded.as_strided((padded.numel() - width + 1, width), (1, 1))  # each run of W pixels, a view
    return rows.index_select(0, starts.flatten()).view(images.shape)


def flip(images: Tensor, draws: Tensor) -> Tensor:
    """Mirror about half of the images left to right: those whose draw is odd."""
    both = torch.cat([images, images.flip(-1)])
    return both.index_select(0, torch.arange(len(images), device=images.device) + draws % 2 * len(images))


AUGMENTATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"crop": crop, "flip": flip}

"""How are training images varied? Whole batches of tensors at once, on their device, from draws made per epoch."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

PADDING = 4


def crop(images: Tensor, draws: Tensor) -> Tensor:
    """Pad each image by 4 black pixels on every side and cut a window of its own size at a random place.

    Args:
        images: (N, C, H, W), any dtype.
        draws: (N,) integers in [0, 2³¹); the window's corner is the draw modulo (2·4+1)².
    """
    height, width = images.shape[-2:]
    places = 2 * PADDING + 1
    padded = F.pad(images, (PADDING,) * 4)
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # (N, C, 9, 9, H, W), a view
    place = draws % places**2
    return windows[torch.arange(len(images), device=images.device), :, place // places, place % places]


def flip(images: Tensor, draws: Tensor) -> Tensor:
    """Mirror about half of the images left to right: those whose draw is odd."""
    mirrored = (draws % 2).bool().view(-1, 1, 1, 1)
    return torch.where(mirrored, images.flip(-1), images)


AUGMENTATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"crop": crop, "flip": flip}

"""How do encoded images (PNG, JPEG, ...) become one tensor? One size; gray if all are gray, else RGB."""

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from lowcurve.data.files import reading
from lowcurve.errors import UserError

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")  # none whose decoder starts another program
GRAY = ("1", "L")
COLOR = ("RGB", "RGBA", "P", "LA", "CMYK", "YCbCr")
REMEDY = "store 8-bit images of one size"


def decode(sources: Sequence[Path | bytes], holder: Path) -> torch.Tensor:
    """Decode images to uint8 (N, C, H, W) with C = 1 or 3; alpha is dropped.

    Args:
        sources: image files, or encoded images.
        holder: the file that the encoded images come from, to name in errors.
    """
    images = np.empty(0, dtype=np.uint8)
    for index, source in enumerate(sources):
        with reading(source if isinstance(source, Path) else holder / f"row {index}", REMEDY):
            pixels = _pixels(source)
            if index == 0:
                images = np.empty((len(sources), *pixels.shape), dtype=np.uint8)
            if pixels.shape[:2] != images.shape[1:3]:
                raise UserError(f"expected {images.shape[1:3]} pixels as in the first image, got {pixels.shape[:2]}")
            if pixels.ndim > images.ndim - 1:  # the first color image after gray ones
                images = np.repeat(images[..., None], 3, axis=-1)
            images[index] = pixels if pixels.ndim == images.ndim - 1 else pixels[..., None]
    tensor = torch.from_numpy(images)
    return tensor.unsqueeze(1) if tensor.ndim == 3 else tensor.permute(0, 3, 1, 2).contiguous()


def _pixels(source: Path | bytes) -> np.ndarray:
    from PIL import Image

    with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=FORMATS) as image:
        if image.mode not in GRAY + COLOR:
            raise UserError(f"expected an 8-bit gray or color image, got mode {image.mode}")
        mode = "L" if image.mode in GRAY else "RGB"
        return np.asarray(image if image.mode == mode else image.convert(mode))

"""How do encoded images (PNG, JPEG, ...) become one tensor? One size; gray if all are gray, else RGB."""

import io
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch

from lowcurve.data.files import reading, require_file, require_memory
from lowcurve.errors import UserError

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")  # none whose decoder starts another program
GRAY = ("1", "L")
COLOR = ("RGB", "RGBA", "P", "LA", "CMYK", "YCbCr")
MAX_PIXELS = 2**22  # 2048 × 2048: a set of such images fills a memory anyway
MAX_ENCODED = 2**26  # bytes
MAX_IMAGES = 10_000_000
MAX_SCANS = 64  # of a progressive JPEG, each of which passes over the whole image; encoders write some ten
REMEDY = "store 8-bit images of one size"


def decode(sources: Iterable[Path | bytes], count: int, holder: Path) -> torch.Tensor:
    """Decode images to uint8 (N, C, H, W) with C = 1 or 3; alpha is dropped.

    Args:
        sources: image files, or encoded images; they are read one at a time.
        count: how many there are.
        holder: the file that the encoded images come from, to name in errors.
    """
    images = np.empty((0, 0, 0, 0), dtype=np.uint8)
    for index, source in enumerate(sources):
        with reading(source if isinstance(source, Path) else holder / f"row {index}", REMEDY):
            pixels = _pixels(require_file(source, MAX_ENCODED).read_bytes() if isinstance(source, Path) else source)
            if index == 0:
                require_memory(count, pixels.shape)
                images = np.empty((count, *pixels.shape), dtype=np.uint8)
            if pixels.shape[1:] != images.shape[2:]:
                raise UserError(f"expected {images.shape[2:]} pixels as in the first image, got {pixels.shape[1:]}")
            if len(pixels) > images.shape[1]:  # the first color image after gray ones
                require_memory(2 * count, pixels.shape)
                images = np.repeat(images, 3, axis=1)
            images[index] = pixels
    return torch.from_numpy(images)


def _pixels(encoded: bytes) -> np.ndarray:
    """Decode one image to (C, H, W)."""
    from PIL import Image

    with Image.open(io.BytesIO(encoded), formats=FORMATS) as image:
        if image.width * image.height > MAX_PIXELS:  # the header says so: nothing is decoded yet
            raise UserError(f"expected at most {MAX_PIXELS:,} pixels, got {image.width:,} × {image.height:,}")
        if encoded.count(b"\xff\xda") > MAX_SCANS and image.format == "JPEG":
            raise UserError(f"expected a JPEG of at most {MAX_SCANS} scans, got more")
        if image.mode not in GRAY + COLOR:
            raise UserError(f"expected an 8-bit gray or color image, got mode {image.mode}")
        mode = "L" if image.mode in GRAY else "RGB"
        pixels = np.asarray(image if image.mode == mode else image.convert(mode))
        return pixels[None] if mode == "L" else pixels.transpose(2, 0, 1)

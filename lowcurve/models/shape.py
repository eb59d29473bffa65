"""How large is an input? One spelling for square images, rectangles and flat vectors."""

from lowcurve.errors import UserError

ImageSize = int | tuple[int, int] | tuple[()]


def height_width(image_size: ImageSize, smallest: int = 1) -> tuple[int, int]:
    """Return (height, width) of an image; a flat vector counts as one pixel.

    >>> height_width(32), height_width((8, 12)), height_width(())
    ((32, 32), (8, 12), (1, 1))
    """
    size = (image_size, image_size) if isinstance(image_size, int) else tuple(image_size) or (1, 1)
    if len(size) != 2 or min(size) < smallest:
        raise UserError(
            f"image_size must be a side or (height, width) of at least {smallest} pixels, got {image_size!r}"
        )
    return size

"""How are the official Fashion-MNIST files read? Four files in the IDX format, gzipped or not."""

import math
from functools import partial
from pathlib import Path

import numpy as np
import torch

from lowcurve.data.archives import read_bytes
from lowcurve.data.dataset import Split
from lowcurve.data.files import Found, reading, require_labels
from lowcurve.errors import UserError

REMEDY = "delete it and fetch the data set again (lowcurve data fetch fashion-mnist)"
CLASSES = (
    *("t-shirt", "trouser", "pullover", "dress", "coat"),
    *("sandal", "shirt", "sneaker", "bag", "ankle_boot"),
)
FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


def find(folder: Path) -> Found | None:
    """Look for the four files in `folder` only: MNIST's have the same names."""
    files = []
    for name in FILES:
        present = [file for file in (folder / name, folder / f"{name}.gz") if file.is_file()]
        if not present:
            return None
        files.append(present[0])
    return Found("idx files", tuple(files), partial(_read, *files))


def _read(train_images: Path, train_labels: Path, test_images: Path, test_labels: Path) -> tuple[Split, Split]:
    return read_split(train_images, train_labels), read_split(test_images, test_labels)


def read_split(image_file: Path, label_file: Path) -> Split:
    """Read images (N, 28, 28) and labels (N,)."""
    with reading(image_file, REMEDY):
        images = parse_idx(read_bytes(image_file), dimensions=3)
    with reading(label_file, REMEDY):
        labels = parse_idx(read_bytes(label_file), dimensions=1)
        require_labels(labels, 0, len(CLASSES) - 1)
        return Split(torch.from_numpy(images).unsqueeze(1), torch.from_numpy(labels.astype(np.int64)))


def parse_idx(data: bytes, dimensions: int) -> np.ndarray:
    """Read an IDX array of bytes: 0, 0, 8, rank, then each size as 4 bytes (big-endian), then the values.

    >>> parse_idx(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9]), dimensions=1).tolist()
    [7, 9]
    """
    magic = bytes([0, 0, 8, dimensions])
    if data[:4] != magic:
        raise UserError(f"expected an IDX file that begins with {magic.hex()}, got {data[:4].hex()}")
    start = 4 + 4 * dimensions
    shape = tuple(int.from_bytes(data[i : i + 4], "big") for i in range(4, start, 4))
    values = np.frombuffer(data, dtype=np.uint8, offset=min(start, len(data)))
    if len(values) != math.prod(shape):
        raise UserError(f"expected {' × '.join(map(str, shape))} values, got {len(values):,}")
    return values.reshape(shape).copy()

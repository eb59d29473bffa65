"""How are the official SVHN files read? Cropped 32×32 house numbers as MATLAB files."""

from functools import partial
from pathlib import Path

import numpy as np
import torch

from lowcurve.data.dataset import Split
from lowcurve.data.files import Found, reading, require_file, require_labels
from lowcurve.errors import UserError

REMEDY = "delete it and fetch the data set again (lowcurve data fetch svhn)"
MAX_IMAGES = 150_000  # the larger official file has 73,257


def find(folder: Path) -> Found | None:
    """Look for both files in `folder` or beside it."""
    for place in (folder, folder.parent):
        train, test = place / "train_32x32.mat", place / "test_32x32.mat"
        if train.is_file() and test.is_file():
            return Found("matlab files", (train, test), partial(_read, train, test))
    return None


def _read(train: Path, test: Path) -> tuple[Split, Split]:
    return read_split(train), read_split(test)


def read_split(file: Path) -> Split:
    """Read X (32, 32, 3, N) uint8 and y (N, 1); the file calls the digit 0 class 10, we call it 0."""
    from scipy.io import loadmat, whosmat

    with reading(file, REMEDY):
        headers = whosmat(require_file(file))  # before anything is allocated
        shapes = {name: shape for name, shape, _ in headers}
        shape = shapes.get("X", ())
        if shape[:3] != (32, 32, 3) or len(shape) != 4 or not 0 < shape[3] <= MAX_IMAGES:
            raise UserError(f"expected an array X of shape (32, 32, 3, N), got {shapes}")
        if shapes.get("y") != (shape[3], 1):
            raise UserError(f"expected an array y of shape ({shape[3]}, 1), got {shapes.get('y')}")
        content = loadmat(file, variable_names=["X", "y"])
        images, labels = content["X"], content["y"][:, 0]
        if images.dtype != np.uint8 or labels.dtype.kind not in "ui":
            raise UserError(f"expected X and y of unsigned bytes, got {images.dtype} and {labels.dtype}")
        require_labels(labels, 1, 10)
        pixels = torch.from_numpy(np.ascontiguousarray(images.transpose(3, 2, 0, 1)))
        return Split(pixels, torch.from_numpy(labels.astype(np.int64) % 10))

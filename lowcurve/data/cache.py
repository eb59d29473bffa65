"""Must images be decoded at each start? Not twice: pixels are kept beside the data, under the file's SHA-256.

Decoding 25,000 PNG images takes some 3 seconds of CPU, reading their pixels back 0.2. The cache may be deleted at
any time; where it cannot be written, images are decoded each time.
"""

import hashlib
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch

from lowcurve.data.files import cache_directory, require_file

WORTHWHILE = 2000  # images; fewer are decoded faster than they are looked up
VERSION = 1  # of what `lowcurve.data.images.decode` makes of the same bytes


def decoded(file: Path, count: int, decode: Callable[[], torch.Tensor]) -> torch.Tensor:
    """Return `decode()`, the `count` images of `file`, from the cache if the same bytes were decoded before."""
    if count < WORTHWHILE:
        return decode()
    with file.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    kept = cache_directory() / "decoded" / f"{digest}-{VERSION}.npy"
    images = _load(kept, count)
    if images is None:
        images = decode()
        with suppress(OSError):
            _store(kept, images)
    return images


def _load(path: Path, count: int) -> torch.Tensor | None:
    try:
        images = np.load(require_file(path), allow_pickle=False)
    except (OSError, ValueError, EOFError, MemoryError):  # not there, or damaged
        return None
    sound = images.dtype == np.uint8 and images.ndim == 4 and len(images) == count
    return torch.from_numpy(images) if sound else None


def _store(path: Path, images: torch.Tensor) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            np.save(file, images.numpy(), allow_pickle=False)
        Path(name).replace(path)
    except OSError:
        Path(name).unlink()
        raise

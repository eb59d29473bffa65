"""Where do data files lie, and what if one cannot be read? An error that names it and the remedy."""

import math
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lowcurve.data.dataset import Split
from lowcurve.errors import UserError

ENVIRONMENT = "LOWCURVE_DATA"
MAX_FILE = 2**34


class FileError(UserError):
    """A file or folder that is not what it should be: which, why, and what to do."""

    def __init__(self, path: Path, problem: str, remedy: str) -> None:
        super().__init__(f"{path}: {problem[:500]}; {remedy}")
        self.parts = path, problem, remedy

    def __reduce__(self) -> tuple[type["FileError"], tuple[Path, str, str]]:
        """Travel between processes whole: a worker's error names its file in the parent, too."""
        return FileError, self.parts


@dataclass(frozen=True)
class Found:
    """Files on disk that hold a data set, the layout they are in, and a function that reads (train, test)."""

    layout: str
    files: tuple[Path, ...]
    read: Callable[[], tuple[Split, Split]]


def data_directory(data_dir: Path | str | None = None) -> Path:
    """Return the argument, else $LOWCURVE_DATA, else `data` in the cache directory."""
    chosen = data_dir or os.environ.get(ENVIRONMENT)
    return Path(chosen).expanduser() if chosen else cache_directory() / "data"


def cache_directory() -> Path:
    """Return $XDG_CACHE_HOME/lowcurve or ~/.cache/lowcurve."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "lowcurve"


def require_file(path: Path, limit: int = MAX_FILE) -> Path:
    """Return `path` if it is, or links to, a regular file of at most `limit` bytes: pipes block, devices never end.

    Links may lead out of their folder, as those of the Hugging Face cache do; what they lead to is only decoded.
    """
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise UserError("expected a regular file, got a folder, pipe, socket or device")
    if not 0 < found.st_size <= limit:
        raise UserError(f"expected a file of 1 to {limit:,} bytes, got {found.st_size:,}")
    return path


@contextmanager
def reading(path: Path, remedy: str) -> Iterator[None]:
    """Turn whatever a parser raises on broken bytes into a FileError; one from a narrower `reading` stays.

    Parsers of untrusted files (zlib, tar, pickle, Pillow, Arrow, SciPy) raise nearly every exception: this is
    the one place where a broad `except` is right.
    """
    try:
        yield
    except FileError:
        raise
    except UserError as error:
        raise FileError(path, str(error), remedy) from error
    except Exception as error:
        raise FileError(path, f"cannot be read ({type(error).__name__}: {error})", remedy) from error


def require_memory(count: int, shape: tuple[int, ...]) -> None:
    """Refuse `count` samples of `shape` bytes that would fill more than half of this machine's memory."""
    needed, there = count * math.prod(shape), os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > there // 2:
        raise UserError(
            f"expected samples that fit into half of the memory ({there / 2**31:.1f} GB), got {count:,} of shape "
            f"{shape} ({needed / 2**30:.1f} GB)"
        )


def require_labels(labels: np.ndarray, low: int, high: int) -> None:
    """Refuse labels outside [low, high], where the file that has them is still known."""
    if labels.size and not (low <= labels.min() and labels.max() <= high):
        raise UserError(f"expected labels from {low} to {high}, got {labels.min()} to {labels.max()}")

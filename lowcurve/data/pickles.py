"""How is a pickle of the official CIFAR files read without trusting it? Nothing it names is imported or run.

Python's unpickler builds lists, dicts, strings, bytes and numbers. The few names that the official files use
(NumPy's array and dtype, their reconstructor, the codec for bytes) stand for the inert classes below, which
only keep what they are given; every other name is refused. The interpreter is the one written in Python: one
instruction of a crafted pickle makes the C version allocate any amount of memory.
"""

import io
import pickle
from typing import Any

import numpy as np

from lowcurve.errors import UserError


class ByteType:
    """Stands for `numpy.dtype`; only unsigned bytes are allowed."""

    def __init__(self, code: str, *_: object) -> None:
        if code not in ("u1", "|u1"):
            raise UserError(f"expected an array of bytes (u1), got type {code!r}")

    def __setstate__(self, state: object) -> None:
        """Ignore byte order and flags: a byte has none."""


class Array:
    """Stands for `numpy.ndarray`; holds shape, order and raw bytes until :meth:`numpy` checks them."""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        """Keep (version, shape, dtype, column-major, bytes)."""
        _, self.shape, self.dtype, self.fortran, self.raw = state

    def numpy(self) -> np.ndarray:
        """Return the array, or refuse a state that is not that of a byte array."""
        raw = self.raw.encode("latin1") if isinstance(self.raw, str) else self.raw
        if not isinstance(self.dtype, ByteType) or not isinstance(raw, bytes):
            raise UserError(f"expected an array of bytes, got one of {type(raw).__name__}")
        return np.frombuffer(raw, dtype=np.uint8).reshape(self.shape, order="F" if self.fortran else "C")


class Reconstruct:
    """Stands for `numpy.core.multiarray._reconstruct`: an empty array, whatever is asked."""

    def __new__(cls, *_: object) -> Any:
        """Return the stand-in that the next instruction fills."""
        return Array()


class Encode:
    """Stands for `_codecs.encode`, by which Python 3 writes bytes in protocol 2."""

    def __new__(cls, text: str, encoding: str) -> Any:
        """Return the bytes of a latin-1 text."""
        if encoding not in ("latin1", "latin-1"):
            raise UserError(f"expected bytes written as latin1, got {encoding!r}")
        return text.encode("latin1")


STAND_INS: dict[tuple[str, str], type] = {
    ("numpy.core.multiarray", "_reconstruct"): Reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): Reconstruct,
    ("numpy", "ndarray"): Array,
    ("numpy", "dtype"): ByteType,
    ("_codecs", "encode"): Encode,
}


class Unpickler(pickle._Unpickler):
    """Python's unpickler with the names above and no others."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a stand-in, never an import."""
        if (module, name) not in STAND_INS:
            raise UserError(f"expected arrays, lists, bytes and strings only, got the name {module}.{name}")
        return STAND_INS[module, name]


def loads(data: bytes) -> Any:
    """Read a pickle of dicts, lists, strings, bytes, numbers and byte arrays; texts of Python 2 are latin-1.

    >>> loads(pickle.dumps({"labels": [3, 1]}))
    {'labels': [3, 1]}
    >>> loads(pickle.dumps(np.arange(3, dtype=np.uint8), protocol=2)).numpy()
    array([0, 1, 2], dtype=uint8)
    """
    return Unpickler(io.BytesIO(data), encoding="latin1").load()

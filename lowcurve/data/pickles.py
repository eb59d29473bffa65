"""How is a pickle of the official CIFAR files read without trusting it? Nothing it names is imported or run.

Python's unpickler builds lists, dicts, strings, bytes and numbers. The few names that the official files use
(NumPy's array and dtype, their reconstructor, the codec for bytes) stand for the inert classes below, which
only keep what they are given; every other name is refused. The interpreter is the one written in Python: one
instruction of a crafted pickle makes the C version allocate any amount of memory.
"""

import io
import pickle
import pickletools
from typing import Any

import numpy as np

from lowcurve.errors import UserError


class StandIn:
    """What a name in a pickle becomes. It has a `__setstate__`, else the unpickler would set its attributes."""

    def __setstate__(self, state: object) -> None:
        """Refuse a state; classes below that expect one say so."""
        raise UserError(f"expected no state for {type(self).__name__}, got {type(state).__name__}")


class Bytes(StandIn):
    """Stands for `_codecs.encode`, by which Python 3 writes bytes in protocols 0 to 2."""

    def __init__(self, text: str, encoding: str) -> None:
        if encoding != "latin1":
            raise UserError(f"expected bytes written as latin1, got {encoding!r}")
        self.text = text


class ByteType(StandIn):
    """Stands for `numpy.dtype`; only unsigned bytes are allowed."""

    def __init__(self, code: str, *_: object) -> None:
        if code not in ("u1", "|u1"):
            raise UserError(f"expected an array of bytes (u1), got type {code!r}")

    def __setstate__(self, state: object) -> None:
        """Ignore byte order and flags: a byte has none."""


class ArrayStandIn(StandIn):
    """Stands for `numpy.ndarray`; keeps its state until :meth:`numpy` checks it."""

    def __init__(self, *_: object) -> None:
        self.shape, self.dtype, self.fortran, self.raw = (0,), None, False, b""

    def __setstate__(self, state: object) -> None:
        """Keep (version, shape, dtype, column-major, bytes)."""
        _, self.shape, self.dtype, self.fortran, self.raw = state  # type: ignore[misc]

    def numpy(self) -> np.ndarray:
        """Return the array, or refuse a state that is not that of an array of bytes."""
        raw: object = self.raw.text if isinstance(self.raw, Bytes) else self.raw
        if isinstance(raw, str):
            raw = raw.encode("latin1")
        if not isinstance(self.dtype, ByteType) or not isinstance(raw, bytes):
            raise UserError(f"expected an array of bytes, got one of {type(raw).__name__}")
        return np.frombuffer(raw, dtype=np.uint8).reshape(self.shape, order="F" if self.fortran else "C")


STAND_INS: dict[tuple[str, str], type[StandIn]] = {
    ("numpy.core.multiarray", "_reconstruct"): ArrayStandIn,
    ("numpy._core.multiarray", "_reconstruct"): ArrayStandIn,
    ("numpy", "ndarray"): ArrayStandIn,
    ("numpy", "dtype"): ByteType,
    ("_codecs", "encode"): Bytes,
}


# Instructions for dicts, lists, tuples, numbers, texts, bytes, references and the names above; see pickletools.
INSTRUCTIONS = frozenset(
    """
    PROTO FRAME MARK STOP NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG LONG1
    STRING BINSTRING SHORT_BINSTRING UNICODE BINUNICODE SHORT_BINUNICODE BINBYTES SHORT_BINBYTES BINBYTES8
    EMPTY_DICT DICT SETITEM SETITEMS EMPTY_LIST LIST APPEND APPENDS EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3
    PUT BINPUT LONG_BINPUT GET BINGET LONG_BINGET MEMOIZE GLOBAL STACK_GLOBAL REDUCE BUILD
    """.split()  # noqa: SIM905 - the list is read, not computed with
)
MAX_INSTRUCTIONS = 4_000_000  # the largest official file has some 500,000; each may make an object


class Unpickler(pickle._Unpickler):
    """Python's unpickler with the names above and no others."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a stand-in, never an import."""
        if (module, name) not in STAND_INS:
            raise UserError(f"expected arrays, lists, bytes and strings only, got the name {module}.{name}")
        return STAND_INS[module, name]


def loads(data: bytes) -> Any:
    """Read a pickle of dicts, lists, strings, bytes, integers and byte arrays; texts of Python 2 are latin-1.

    >>> loads(pickle.dumps({"labels": [3, 1]}))
    {'labels': [3, 1]}
    >>> loads(pickle.dumps(np.arange(3, dtype=np.uint8), protocol=2)).numpy()
    array([0, 1, 2], dtype=uint8)
    """
    for count, (instruction, _, _) in enumerate(pickletools.genops(data)):
        if instruction.name not in INSTRUCTIONS or count == MAX_INSTRUCTIONS:
            raise UserError(f"expected arrays, lists, bytes and strings only, got instruction {instruction.name}")
    return Unpickler(io.BytesIO(data), encoding="latin1").load()

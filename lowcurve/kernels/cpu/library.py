"""How are the C loops beside this file called? By ctypes, with addresses of float32 tensors in the CPU's memory."""

import ctypes
from importlib.util import find_spec
from typing import Protocol

import torch

# What each function takes after the number of values or samples and that of threads: (n)umbers, (p)ointers, (f)loats.
_SIGNATURES = {
    "lowcurve_value": "pffp",
    "lowcurve_gradient": "ppffp",
    "lowcurve_gradients": "ppffpp",
    "lowcurve_second": "pppffppp",
    "lowcurve_norm": "nnnpppppffpppp",
    "lowcurve_norm_gradient": "nnnppppppppp",
    "lowcurve_norm_second": "nnnpppppppppppp",
    "lowcurve_norm_softplus": "nnnpppppffpfffpppp",
    "lowcurve_norm_softplus_gradient": "nnnppppppfffpppppp",
    "lowcurve_norm_softplus_second": "nnnppppppppppfffpppppp",
    "lowcurve_power": "ppn",
    "lowcurve_scales": "pppppppppp",
    "lowcurve_scales_gradient": "pppppppppp",
    "lowcurve_units": "pppppp",
    "lowcurve_units_gradient": "ppppppp",
}
_CONSTANTS = ("lowcurve_block", "lowcurve_parts", "lowcurve_columns")
_RETURN_DOUBLE = {"lowcurve_gradients", "lowcurve_second"}
_GIVEN_AS_THEY_ARE = (int, float, type(None))
_TYPES = {"n": ctypes.c_long, "p": ctypes.c_void_p, "f": ctypes.c_float}


_POINTERS = ("weight", "left", "right", "slope")
_LENGTHS = (
    "in",
    "out",
    "height",
    "width",
    "out_h",
    "out_w",
    "kernel_h",
    "kernel_w",
    "stride_h",
    "stride_w",
    "above",
    "before",
    "mixed",
)


class LayerNumbers(ctypes.Structure):
    """A convolution as `power.c` sees it."""

    _fields_ = [(name, ctypes.c_void_p) for name in _POINTERS] + [(name, ctypes.c_long) for name in _LENGTHS]


def _library() -> ctypes.CDLL | None:
    spec = find_spec("lowcurve.kernels.cpu._compiled")
    if spec is None or spec.origin is None:
        return None
    try:
        library = ctypes.CDLL(spec.origin)
        for name, letters in _SIGNATURES.items():
            getattr(library, name).argtypes = [ctypes.c_long, ctypes.c_int, *(_TYPES[letter] for letter in letters)]
            getattr(library, name).restype = ctypes.c_double if name in _RETURN_DOUBLE else None
        library.lowcurve_power_room.argtypes = [ctypes.c_void_p]
        library.lowcurve_power_room.restype = ctypes.c_long
        for name in _CONSTANTS:
            ctypes.c_long.in_dll(library, name)
    except (OSError, AttributeError, ValueError):  # built for another machine, or from older sources
        return None
    return library


LIBRARY = _library()
BLOCK, PARTS, COLUMNS = (0 if LIBRARY is None else ctypes.c_long.in_dll(LIBRARY, name).value for name in _CONSTANTS)


class InMemory(Protocol):
    """What has an address."""

    def data_ptr(self) -> int:
        """Return the address."""
        ...


def call(name: str, size: int, *arguments: InMemory | float | None) -> float:
    """Call a loop with as many threads as PyTorch has; tensors go as their address."""
    addressed = [a if type(a) in _GIVEN_AS_THEY_ARE else a.data_ptr() for a in arguments]  # type: ignore[union-attr]
    total: float = getattr(LIBRARY, name)(size, torch.get_num_threads(), *addressed)
    return total

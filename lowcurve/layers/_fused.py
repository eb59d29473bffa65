"""The compiled loops of `_softplus.c` on tensors, for tensors of which `applies` is true."""

import ctypes
from importlib.util import find_spec

import torch
from torch import Tensor

_BLOCK = 4096


def _library() -> ctypes.CDLL | None:
    spec = find_spec("lowcurve.layers._softplus")
    if spec is None or spec.origin is None:
        return None
    try:
        library = ctypes.CDLL(spec.origin)
    except OSError:  # built for another machine
        return None
    for name in ("lowcurve_gradients", "lowcurve_second"):
        getattr(library, name).restype = ctypes.c_double
    return library


_LIBRARY = _library()


def applies(*tensors: Tensor) -> bool:
    """Whether the loops were compiled, at installation, and all tensors are plain float32 ones on the CPU."""
    return _LIBRARY is not None and all(
        t.dtype == torch.float32 and t.device.type == "cpu" and type(t) is Tensor for t in tensors
    )


def value(x: Tensor, beta: float, shift: float) -> Tensor:
    """Return s₀(x; β) + shift."""
    x = _dense(x)
    y = torch.empty_like(x)
    _call("lowcurve_value", x.numel(), x, beta, shift, y)
    return y


def gradient(grad: Tensor, y: Tensor, beta: float, shift: float) -> Tensor:
    """Return g σ for the upstream gradient g and the activation's output y."""
    y, grad = _alike(y, grad)
    in_x = torch.empty_like(y)
    _call("lowcurve_gradient", y.numel(), grad, y, beta, shift, in_x)
    return in_x


def gradients(grad: Tensor, y: Tensor, beta: float, shift: float) -> tuple[Tensor, Tensor]:
    """Return g σ, and Σ g (log 2 - H(σ)) / β, the gradient in log β."""
    y, grad = _alike(y, grad)
    in_x = torch.empty_like(y)
    total = _call("lowcurve_gradients", y.numel(), grad, y, beta, shift, in_x, _partial(y))
    return in_x, torch.tensor(total / beta)


def second(outer: Tensor, grad: Tensor, y: Tensor, beta: float, shift: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return h σ, h g β (1 - σ), and the sum of the latter times y, for h the gradient of g σ."""
    y, outer, grad = _alike(y, outer, grad)
    in_grad, in_y = torch.empty_like(y), torch.empty_like(y)
    total = _call("lowcurve_second", y.numel(), outer, grad, y, beta, shift, in_grad, in_y, _partial(y))
    return in_grad, in_y, torch.tensor(total)


def _call(name: str, size: int, *arguments: Tensor | float) -> float:
    converted = [ctypes.c_void_p(a.data_ptr()) if isinstance(a, Tensor) else ctypes.c_float(a) for a in arguments]
    total: float = getattr(_LIBRARY, name)(ctypes.c_long(size), torch.get_num_threads(), *converted)
    return total


def _partial(y: Tensor) -> Tensor:
    return torch.empty(y.numel() // _BLOCK + 1)


def _dense(x: Tensor) -> Tensor:
    """Return x itself where its elements fill one stretch of memory in any order, else a contiguous copy."""
    return x if torch.empty_like(x).stride() == x.stride() else x.contiguous()


def _alike(y: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    """Give all tensors y's order in memory."""
    y = _dense(y)
    return y, *(t if t.stride() == y.stride() else torch.empty_like(y).copy_(t) for t in others)

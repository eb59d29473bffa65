"""The operators on GPUs (CUDA and ROCm): Triton kernels for half and single precision, plain PyTorch for the rest.

Triton comes with PyTorch's builds for GPUs. It is imported when the first tensor on a GPU needs it.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from lowcurve.kernels import reference

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def _takes(*given: Any) -> bool:
    """Whether all tensors are of a precision that the kernels have, and none is empty."""
    return all(t.dtype in _DTYPES and t.numel() > 0 for t in given if isinstance(t, Tensor))


def _lists_take(*given: Any) -> bool:
    """Whether all tensors, in lists or alone, are in float32."""
    tensors = [t for g in given for t in (g if isinstance(g, list | tuple) else (g,)) if isinstance(t, Tensor)]
    return all(t.dtype is torch.float32 for t in tensors)


def _operator(name: str, module: str, takes: Callable[..., bool]) -> Callable[..., Any]:
    """Return the function that computes an operator by the Triton module's function of the same name where it can."""

    def compute(*given: Any) -> Any:
        if not takes(*given):
            return getattr(reference, name)(*given)
        return getattr(import_module(f"lowcurve.kernels.triton.{module}"), name)(*given)

    compute.__name__, compute.__doc__ = name, getattr(reference, name).__doc__
    return compute


softplus = _operator("softplus", "softplus", _takes)
softplus_gradient = _operator("softplus_gradient", "softplus", _takes)
softplus_second = _operator("softplus_second", "softplus", _takes)
norm = _operator("norm", "norm", _takes)
norm_gradient = _operator("norm_gradient", "norm", _takes)
norm_second = _operator("norm_second", "norm", _takes)
affine = _operator("affine", "affine", _takes)
affine_gradient = _operator("affine_gradient", "affine", _takes)
affine_second = _operator("affine_second", "affine", _takes)
scales = _operator("scales", "scales", _lists_take)
scales_gradient = _operator("scales_gradient", "scales", _lists_take)
unit_weights = _operator("unit_weights", "unit", _lists_take)
unit_weights_gradient = _operator("unit_weights_gradient", "unit", _lists_take)

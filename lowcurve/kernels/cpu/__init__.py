"""The operators on CPUs: C loops for float32, compiled at installation; plain PyTorch for everything else.

Each function asks itself whether its loop can take the tensors as they are. A tensor of channels is row-major or
channels_last; others are for PyTorch.
"""

from lowcurve.kernels.cpu.norm import norm, norm_gradient, norm_second
from lowcurve.kernels.cpu.softplus import (
    affine,
    affine_gradient,
    affine_second,
    softplus,
    softplus_gradient,
    softplus_second,
)
from lowcurve.kernels.cpu.weights import scales, scales_gradient, unit_weights, unit_weights_gradient

__all__ = [
    "affine",
    "affine_gradient",
    "affine_second",
    "norm",
    "norm_gradient",
    "norm_second",
    "scales",
    "scales_gradient",
    "softplus",
    "softplus_gradient",
    "softplus_second",
    "unit_weights",
    "unit_weights_gradient",
]

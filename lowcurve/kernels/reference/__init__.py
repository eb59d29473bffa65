"""Every operator in plain PyTorch: what the kernels of a device must compute, for all dtypes, devices and layouts."""

from lowcurve.kernels.reference.affine import affine, affine_gradient, affine_second
from lowcurve.kernels.reference.norm import norm, norm_gradient, norm_second
from lowcurve.kernels.reference.scales import scales, scales_gradient
from lowcurve.kernels.reference.softplus import softplus, softplus_gradient, softplus_second
from lowcurve.kernels.reference.unit import unit_weights, unit_weights_gradient

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

"""In which arithmetic does PyTorch run a network, and is it one whose rounding can be bounded?

The bounds of `lowcurve.guarantees.rounding` assume that every sum of n products is a sum of n products, in any order,
with or without fused multiply-adds. Reduced precision (half, bfloat16, TF32) and the fast convolutions by transforms
(Winograd, FFT) are something else and refused.
"""

import os
import platform
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lowcurve.errors import UserError
from lowcurve.layers.spectral import SpectralNorm

_EXACT = ("none", "ieee", "highest")
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True)
class Arithmetic:
    """Floating-point numbers with unit roundoff `unit`, smallest normal number `tiny` and largest number `largest`.

    A result below `tiny` may be flushed to 0, and so may an operand. `unit` includes what the float64 reference, with
    which results are compared, errs by.
    """

    unit: float
    tiny: float
    largest: float

    def gamma(self, terms: int) -> float:
        """γ_n = n u / (1 − n u), which bounds the relative error of n roundings in a row; ∞ where n u reaches 1."""
        small = terms * self.unit
        return small / (1 - small) if small < 1 else torch.inf


# 1e-100 instead of 2e-308: larger errors are allowed, and squares of what remains do not underflow.
FLOAT64 = Arithmetic(2.0**-51, 1e-100, 1e300)
FLOAT32 = Arithmetic(2.0**-24 + 2.0**-50, torch.finfo(torch.float32).tiny, torch.finfo(torch.float32).max)


def arithmetic(model: nn.Module, x: Tensor) -> Arithmetic:
    """Return the arithmetic in which `model(x)` runs, or refuse it."""
    checksums = {id(module.mark) for module in model.modules() if isinstance(module, SpectralNorm)}
    parts = (part for part in (x, *model.parameters(), *model.buffers()) if id(part) not in checksums)
    tensors = [part for part in parts if part.is_floating_point()]
    kinds = {tensor.dtype for tensor in tensors}
    if not x.is_floating_point() or kinds not in ({torch.float32}, {torch.float64}):
        found = ", ".join(sorted(str(kind) for kind in {x.dtype, *kinds}))
        raise UserError(
            f"expected inputs and a model in float32 or in float64, got {found}; convert both to one of them"
        )
    devices = {str(tensor.device) for tensor in tensors}
    if devices != {"cpu"}:
        raise UserError(
            f"expected inputs and a model on the processor, got {', '.join(sorted(devices))}: GPU kernels (TF32, "
            "Winograd) have no rounding bound; pass copies on the CPU, of which the certificate then speaks"
        )
    _refuse_reduced_precision()
    _refuse_transforms(model)
    return FLOAT32 if torch.float32 in kinds else FLOAT64


def _refuse_reduced_precision() -> None:
    """Refuse autocast and settings that let float32 products be computed in fewer bits."""
    if torch.is_autocast_enabled("cpu"):
        raise UserError("expected full precision, got autocast: its rounding is not bounded; certify outside of it")
    onednn = torch.backends.mkldnn
    settings = [getattr(part, "fp32_precision", "none") for part in (*_parts(onednn), onednn, torch.backends)]
    settings += [torch.get_float32_matmul_precision(), _environment("ONEDNN_DEFAULT_FPMATH_MODE")]
    settings += [_environment("DNNL_DEFAULT_FPMATH_MODE")]
    reduced = [setting for setting in settings if setting not in _EXACT]
    if reduced:
        raise UserError(
            f"expected float32 products in full precision, got {reduced[0]!r}; call "
            "torch.set_float32_matmul_precision('highest') and leave fp32_precision alone"
        )


def _parts(onednn: object) -> list[object]:
    return [getattr(onednn, name) for name in ("matmul", "conv", "rnn") if hasattr(onednn, name)]


def _environment(name: str) -> str:
    value = os.environ.get(name, "strict").lower()
    return "none" if value in ("strict", "") else value


def _refuse_transforms(model: nn.Module) -> None:
    """Refuse convolutions where NNPACK or Arm's library may compute them by Winograd's or Fourier's transform."""
    if not any(isinstance(module, _CONVOLUTIONS) for module in model.modules()):
        return
    onednn = torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled
    nnpack = torch.backends.nnpack.is_available()
    if onednn and platform.machine().lower() in ("x86_64", "amd64", "i386", "i686"):
        return
    if onednn or nnpack:
        raise UserError(
            "expected convolutions that are sums of products, got a PyTorch that may compute them by transforms "
            "(NNPACK, or oneDNN on another processor than x86), whose rounding is not bounded; certify on an x86 "
            "processor with torch.backends.mkldnn.enabled"
        )

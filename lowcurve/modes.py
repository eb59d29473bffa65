"""Contexts in which a model is only looked at: mode, gradients, flags, buffers and RNG come back as they were."""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.utils import parametrize

from lowcurve.errors import UserError
from lowcurve.layers.spectral import held, normalized_layers

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of <malloc.h>


@contextmanager
def observing(model: nn.Module) -> Iterator[nn.Module]:
    """Put `model` in eval mode with parameters that need no gradient; restore each module and flag on exit.

    Eval mode changes no buffer of a well-behaved module; buffers that a forward changed all the same are restored,
    so that measuring a model never alters it.
    """
    modes = {module: module.training for module in model.modules()}
    flags = {parameter: parameter.requires_grad for parameter in model.parameters()}
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    model.eval()
    for parameter in flags:
        parameter.requires_grad_(False)
    try:
        with parametrize.cached():  # weights do not change meanwhile: normalize each once
            yield model
    finally:
        for module, training in modes.items():
            module.training = training
        for parameter, flag in flags.items():
            parameter.requires_grad_(flag)
        with torch.no_grad():
            for buffer, value in buffers:
                if not torch.equal(buffer, value):  # an unchanged one may be part of a graph: leave it alone
                    buffer.copy_(value)


@contextmanager
def frozen_buffers(model: nn.Module) -> Iterator[nn.Module]:
    """Let train-mode forwards use batch statistics as usual, but update no running statistic and no singular vector."""
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._NormBase) and m.track_running_stats]
    for norm in norms:
        norm.track_running_stats = False
    try:
        with held(normalized_layers(model)):
            yield model
    finally:
        for norm in norms:
            norm.track_running_stats = True


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """Let the processor take numbers below 1e-38 for zero, as a GPU does; restore its mode on exit.

    A softplus with β = 1000 underflows at every other activation, and denormal numbers make a training step on a
    CPU nearly twice as long.

    >>> with flushed_denormals():
    ...     float(torch.tensor(1e-39) * 1)
    0.0
    """
    before = float(torch.tensor(1e-39) * 1) == 0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


@contextmanager
def kept_memory() -> Iterator[None]:
    """Let the C library keep what is freed for what is allocated next; on exit give it back to the system.

    A step of training takes and frees hundreds of megabytes. By default glibc returns the end of its heap each time
    and then waits for the system to fill fresh pages with zeros: nearly a tenth of a GradReg step. Elsewhere than on
    glibc nothing happens.
    """
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    if library is None or not hasattr(library, "mallopt"):
        yield
        return
    library.mallopt(_MMAP_THRESHOLD, 2**30)
    library.mallopt(_TRIM_THRESHOLD, 2**31 - 1)
    try:
        yield
    finally:
        library.mallopt(_MMAP_THRESHOLD, 2**25)  # where glibc's own adjustment ends
        library.mallopt(_TRIM_THRESHOLD, 2**26)
        library.malloc_trim(0)


def generator(seed: int, *keys: int, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a generator fixed by `seed` and further integers such as an epoch or a sample's index.

    >>> a = torch.rand(2, generator=generator(0, 5)); b = torch.rand(2, generator=generator(0, 5))
    >>> bool((a == b).all())
    True
    """
    mixed = seed
    for key in keys:
        mixed = (mixed * 6364136223846793005 + key + 1442695040888963407) % 2**63
    return torch.Generator(device=device).manual_seed(mixed)


def refuse_batch_statistics(model: nn.Module) -> None:
    """Refuse a model whose answer for a sample depends on the other samples of its batch, in eval mode too."""
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is None:
            raise UserError(
                f"{name or '(model)'} ({type(module).__name__}) has no running statistics, so that each answer depends "
                "on the whole batch and says nothing of its sample; build it with track_running_stats=True"
            )

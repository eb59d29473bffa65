"""How large is an input? One spelling for square images, rectangles and flat vectors."""

import inspect
import os
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import nn

from lowcurve import checks
from lowcurve.errors import UserError

Net = TypeVar("Net", bound=nn.Module)
LARGE = 512  # width from which the size of a network is looked at before it is built
# Factors (before, after) of a residual block: out = after · (F(before · x) + S(before · x)).
RESIDUALS = {"mean": (0.5**0.5, 0.5), "sum": (1.0, 1.0)}

ImageSize = int | tuple[int, int] | tuple[()]


def height_width(image_size: ImageSize, smallest: int = 1) -> tuple[int, int]:
    """Return (height, width) of an image; a flat vector counts as one pixel.

    >>> height_width(32), height_width((8, 12)), height_width(())
    ((32, 32), (8, 12), (1, 1))
    """
    size: Any = (image_size, image_size) if isinstance(image_size, int) else image_size
    size = (1, 1) if size == () else size
    checks.size(image_size=size)
    if len(size) != 2 or min(size) < smallest:
        raise UserError(
            f"image_size must be a side or (height, width) of at least {smallest} pixels, got {image_size!r}"
        )
    return size


def checked(build: Callable[..., Net]) -> Callable[..., Net]:
    """Decorate a function that builds a network: arguments are checked, and so is that it fits into memory."""

    @wraps(build)
    def inner(*args: Any, **kwargs: Any) -> Net:
        given = inspect.signature(build).bind(*args, **kwargs)
        given.apply_defaults()
        values = given.arguments
        checks.whole(1, 2**31 - 1, **{name: values[name] for name in ("num_classes", "in_channels", "width")})
        checks.choice(RESIDUALS, residual=values["residual"])
        height_width(values["image_size"])
        values["activation"] = _modules_of(values["activation"])
        if max(values["num_classes"], values["in_channels"], values["width"]) > LARGE:
            _check_memory(build, values)
        return build(**values)

    return inner


def _modules_of(activation: object) -> Callable[[], nn.Module]:
    """Return the factory, which must make modules."""
    if not callable(activation):
        raise UserError(f"expected activation as a factory such as nn.ReLU, got {checks.shown(activation)}")

    def make() -> nn.Module:
        try:
            module = activation()
        except TypeError as error:
            raise UserError(f"expected activation as a factory without arguments: {error}") from None
        checks.modules(**{"what activation() makes": module})
        return module

    return make


def _check_memory(build: Callable[..., nn.Module], values: dict[str, Any]) -> None:
    """Refuse a network of which four copies (weights, gradients, momenta, surgery) exceed this machine's memory."""
    try:
        with torch.device("meta"):
            needed = 4 * sum(weight.nbytes for weight in build(**values).parameters())
    except (RuntimeError, OverflowError):  # more than PyTorch can count
        needed = 2**63
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 2**62
    if needed > there:
        raise UserError(
            f"expected a network that can be trained in {there / 2**30:.0f} GiB of memory, got width "
            f"{values['width']}, {values['in_channels']} channels and {values['num_classes']} classes, which needs "
            f"{needed / 2**30:.0f}; choose a smaller width"
        )

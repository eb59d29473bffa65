"""Look at a model without a trace: mode, gradient flags and buffers come back as they were."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.utils import parametrize


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

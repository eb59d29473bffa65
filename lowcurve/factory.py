"""How is somebody else's model named? By `package.module:factory`, a function without arguments that returns it."""

import sys
from importlib import import_module

from torch import nn

from lowcurve.errors import UserError


def load_factory(target: str) -> nn.Module:
    """Import `package.module:factory` (the working directory counts) and call it for a model."""
    package, colon, factory = target.partition(":")
    if not colon:
        raise UserError(
            f"expected a run folder or package:factory, got {target!r}; no such folder. "
            "A factory is a function without arguments that returns a model, for example mypackage.models:resnet"
        )
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        model = getattr(import_module(package), factory)()
    except Exception as error:  # whatever the user's own code raises
        raise UserError(f"cannot load {target!r}: {type(error).__name__}: {error}") from error
    if not isinstance(model, nn.Module):
        raise UserError(f"{target!r} returned {type(model).__name__}, expected an nn.Module")
    return model

"""How is somebody else's model named? By `package.module:factory`, a function without arguments that returns it.

Or as a model of a library, `hf:FOLDER` or `timm:NAME`, which `lowcurve.sources` makes.

Naming a function here runs it. So the name comes from the user: the command line, a Python call or the user's own
recipe, and never from a file of a run, which may be somebody else's.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module

from torch import nn

from lowcurve.errors import UserError
from lowcurve.sources import SOURCES

Factory = Callable[[], nn.Module] | str


def check_factory(factory: object) -> None:
    """Refuse what is neither a function nor the name of one; None is no factory."""
    named = isinstance(factory, str) and all(factory.partition(":"))
    if factory is not None and not named and not callable(factory):
        raise UserError(f"expected factory as a function or as 'package.module:function', got {str(factory)[:80]!r}")


def load_factory(target: Factory, input_size: Sequence[int] | None = None, num_classes: int | None = None) -> nn.Module:
    """Import `package.module:factory` (the working directory counts) and call it for a model; or call the function.

    A library's model is made for inputs of `input_size` and for `num_classes`, where its library can.
    """
    library, _, name = target.partition(":") if isinstance(target, str) else ("", "", "")
    try:
        if library in SOURCES:
            return SOURCES[library](name, input_size, num_classes)
        with _working_directory():
            model = (target if callable(target) else _find(target))()
    except UserError:
        raise
    except Exception as error:  # whatever the user's own code raises
        raise UserError(f"cannot load {target!r}: {type(error).__name__}: {error}") from error
    if not isinstance(model, nn.Module):
        raise UserError(f"{target!r} returned {type(model).__name__}, expected an nn.Module")
    return model


def _find(target: str) -> Callable[[], nn.Module]:
    package, colon, factory = target.partition(":") if isinstance(target, str) else ("", "", "")
    if not colon:
        raise UserError(
            f"expected a run folder or package:factory, got {target!r}; no such folder. "
            "A factory is a function without arguments that returns a model, for example mypackage.models:resnet; "
            "hf:FOLDER and timm:NAME are models of those libraries"
        )
    found: Callable[[], nn.Module] = getattr(import_module(package), factory)
    return found


@contextmanager
def _working_directory() -> Iterator[None]:
    """Let imports find the working directory for the duration: later ones must not find a stranger's file there."""
    sys.path.insert(0, "")
    try:
        yield
    finally:
        with suppress(ValueError):
            sys.path.remove("")


def refuse_foreign(source: str, folder: object) -> UserError:
    """Say that the files of `folder` name a function, what loading would run, and how to allow it."""
    if ":" not in source:
        return UserError(
            f"{folder} started from the run {source!r}, whose recipe should be in {folder}/source and is not; "
            "pass the network itself: lowcurve.load(FOLDER, model=…)"
        )
    return UserError(
        f"{folder} names the function {source!r} for its model; loading it would import and run that code. "
        f"If you trust it, name it yourself: --trust {source!r} on the command line, factory={source!r} in Python, "
        "or pass the network itself: lowcurve.load(FOLDER, model=…)"
    )

"""Which network does a recipe train? A new one of the method, or an existing one after its surgery.

A function that makes the network is run only where the caller names or passes it as `factory`; the names in the files
of a run are shown and not imported.
"""

from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from lowcurve.errors import UserError
from lowcurve.factory import Factory, load_factory, refuse_foreign
from lowcurve.files import own_folder, write_atomic
from lowcurve.methods import SURGERY, Method, apply_surgery, build
from lowcurve.observe import observing
from lowcurve.outputs import returning_logits
from lowcurve.training.config import Config, dump_config, read_config

SOURCE = "source"  # folder in a run that keeps the recipe of the run it started from


def make_network(
    config: Config, input_size: tuple[int, ...], num_classes: int, folder: Path, factory: Factory | None = None
) -> nn.Module:
    """Return the architecture of the run in `folder`, with weights from the global generator.

    Where it was not made here, `factory` makes it.
    """
    method = config.method.method
    if config.model.source is None:
        model = config.model
        return build(
            method,
            model.name,
            input_size,
            num_classes,
            model.width,
            model.residual,
            coefficients=config.method.coefficients,
            skip=model.skip,
            last_layer=model.last_layer,
        )
    if kept_source(folder):
        before = read_config(folder / SOURCE / "config.toml")
        net = make_network(before, input_size, num_classes, folder / SOURCE, factory)
        _check_skip(config, before)
        method = _rest(method, before.method.method)
    elif factory is None:
        raise refuse_foreign(config.model.source, folder)
    else:
        net = _made(factory, input_size, num_classes)
    _check(net, input_size, num_classes, config.model.source)
    return _after_surgery(net, method, input_size, config)


def start_from(
    config: Config, input_size: tuple[int, ...], num_classes: int, factory: Factory | None = None
) -> nn.Module:
    """Return the network that a recipe with `model.from` starts to train, with the weights of its source."""
    from lowcurve.training.runs import load, load_config

    source = str(config.model.source)
    method = config.method.method
    if Path(source).is_dir():
        net, before = load(source, factory=factory), load_config(source)
        _check_skip(config, before)
        method = _rest(method, before.method.method)
    else:
        net = _made(factory or source, input_size, num_classes)
    _check(net, input_size, num_classes, source)
    return _after_surgery(net, method, input_size, config)


def _after_surgery(net: nn.Module, method: Method, input_size: tuple[int, ...], config: Config) -> nn.Module:
    return apply_surgery(
        net, method, input_size, config.method.coefficients, config.model.skip, config.model.last_layer
    )


def _made(factory: Factory, input_size: tuple[int, ...], num_classes: int) -> nn.Module:
    """Return what a function or a library makes, as a network that returns logits."""
    return returning_logits(load_factory(factory, input_size, num_classes), torch.zeros(2, *input_size))


def own_factory(config: Config) -> str | None:
    """Return the function that a recipe names for its network, for callers that have the recipe from their user."""
    source = config.model.source
    return source if source and ":" in source and not Path(source).is_dir() else None


def keep_source(source: str, folder: Path) -> None:
    """Copy the recipes of the run that `source` names and of its own sources: `make_network` needs no other folder."""
    if Path(source).is_dir():
        before = read_config(Path(source) / "config.toml")
        write_atomic(own_folder(folder, SOURCE) / "config.toml", dump_config(before))
        if kept_source(Path(source)):
            keep_source(str(Path(source) / SOURCE), folder / SOURCE)


def kept_source(folder: Path) -> bool:
    """Whether a run keeps the recipe of another; a link there could lead in a circle and is refused."""
    if (folder / SOURCE).is_symlink():
        raise UserError(f"expected {folder / SOURCE} to be a folder, got a link; remove it")
    return (folder / SOURCE).is_dir()


def _rest(method: Method, done: Method) -> Method:
    """Return the surgery that is still to do on a network of the method `done`."""
    return replace(
        method,
        activation=None if done.activation in SURGERY else method.activation,
        spectral=method.spectral and not done.spectral,
        batchnorm=method.batchnorm and not done.batchnorm,
    )


def _check_skip(config: Config, before: Config) -> None:
    if before.method.method.converts and config.model.skip != before.model.skip:
        raise UserError(
            f"surgery of {config.model.source} was done with model.skip = {list(before.model.skip)}, this recipe has "
            f"{list(config.model.skip)}; use the same, or start from a network without surgery"
        )


def _check(net: nn.Module, input_size: tuple[int, ...], num_classes: int, source: str) -> None:
    try:
        with observing(net), torch.no_grad():
            shape = tuple(net(torch.zeros(2, *input_size)).shape)
    except Exception as error:  # whatever the user's own code raises
        raise UserError(f"{source} cannot take samples of shape {input_size}: {error}") from None
    if shape != (2, num_classes):
        raise UserError(
            f"{source} should return {num_classes} logits per sample, got outputs of shape {shape[1:]}; "
            "choose a data set with as many classes"
        )

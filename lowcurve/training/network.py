"""Which network does a recipe train? A new one of the method, or an existing one after its surgery."""

import shutil
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from lowcurve.errors import UserError
from lowcurve.factory import load_factory
from lowcurve.methods import Method, build, operate
from lowcurve.modes import observing
from lowcurve.training.config import Config, read_config

SOURCE = "source"  # folder in a run that keeps the recipe of the run it started from


def network(config: Config, input_size: tuple[int, ...], num_classes: int, folder: Path) -> nn.Module:
    """Return the architecture of a run, with weights from the global generator."""
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
            coefficients=config.method,
            skip=model.skip,
        )
    if (folder / SOURCE).is_dir():
        before = read_config(folder / SOURCE / "config.toml")
        net = network(before, input_size, num_classes, folder / SOURCE)
        _check_skip(config, before)
        method = _rest(method, before.method.method)
    else:
        net = load_factory(config.model.source)
    _check(net, input_size, num_classes, config.model.source)
    return operate(net, method, input_size, config.method, config.model.skip)


def start_from(config: Config, input_size: tuple[int, ...], num_classes: int, folder: Path) -> nn.Module:
    """Return the network that a recipe with `model.from` starts to train, with the weights of its source."""
    from lowcurve.training.runs import load, load_config

    source = str(config.model.source)
    if not Path(source).is_dir():
        return network(config, input_size, num_classes, folder)
    net = load(source)
    _check(net, input_size, num_classes, source)
    before = load_config(source)
    _check_skip(config, before)
    method = _rest(config.method.method, before.method.method)
    return operate(net, method, input_size, config.method, config.model.skip)


def keep_source(source: str, folder: Path) -> None:
    """Copy the recipes of the run that `source` names and of its own sources: `network` needs no other folder."""
    if Path(source).is_dir():
        (folder / SOURCE).mkdir(exist_ok=True)
        shutil.copyfile(Path(source) / "config.toml", folder / SOURCE / "config.toml")
        if (Path(source) / SOURCE).is_dir():
            shutil.copytree(Path(source) / SOURCE, folder / SOURCE / SOURCE, dirs_exist_ok=True)


def _rest(method: Method, done: Method) -> Method:
    """Return the surgery that is still to do on a network of the method `done`."""
    return replace(
        method,
        activation=None if done.activation == "learned" else method.activation,
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

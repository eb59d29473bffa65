"""How is a model kept? Tensors in safetensors, the rest in JSON; the architecture comes from whoever loads it."""

import copy
import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, fx, nn

import lowcurve
from lowcurve import checks
from lowcurve.errors import UserError
from lowcurve.factory import Factory, load_factory
from lowcurve.files import lock, make_folder, read_bytes, write_atomic, write_json
from lowcurve.surgery.convert import convert
from lowcurve.surgery.fold import fold
from lowcurve.surgery.record import FOLD, conversions, example, restore_numbers
from lowcurve.training.checkpoint import load_weights
from lowcurve.training.hub import CARD, model_card

FORMAT = "lowcurve model 1"
RECORD = "model.json"
_WEIGHTS = re.compile(r"model-[0-9a-f]{16}\.safetensors")
_HUB_WEIGHTS = "model.safetensors"  # where hubs look for weights


def save(model: nn.Module, path: str | os.PathLike[str], *, hub: bool = False) -> Path:
    """Write a plain, converted or folded model to the folder `path`; return it.

    `model.json` names the weights by their SHA-256, and is replaced last: a folder holds the old model or the new one.
    With `hub`, the folder is laid out for a model hub: weights in `model.safetensors` and a model card, `README.md`,
    which is yours to complete and is kept where there is one. A save into it that was interrupted shows when loading.
    """
    checks.usable(model)
    checks.path(path=path)
    checks.flag(hub=hub)
    weights = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in model.state_dict().items()}
    data = save_tensors(weights, metadata={"format": "pt"} if hub else None)
    digest = hashlib.sha256(data).hexdigest()
    body = {
        "format": FORMAT,
        "lowcurve": lowcurve.__version__,
        "torch": torch.__version__,
        "conversions": conversions(model),
        "modules": _modules(model),
        "weights": _HUB_WEIGHTS if hub else f"model-{digest[:16]}.safetensors",
        "weights_sha256": digest,
    }
    folder = make_folder(Path(path))
    with lock(folder):
        if hub:
            _refuse_others(folder)
        write_atomic(folder / str(body["weights"]), data)
        write_json(folder / RECORD, body | {"sha256": _digest(body)})
        if hub and not (folder / CARD).exists():
            write_atomic(folder / CARD, model_card(model, folder.name))
        for old in folder.iterdir():
            if _WEIGHTS.fullmatch(old.name) and old.name != body["weights"]:
                old.unlink(missing_ok=True)
    return folder


def _refuse_others(folder: Path) -> None:
    """Refuse a folder with somebody else's weights, or with a configuration by which others would read ours."""
    taken = [name for name in ("config.json", _HUB_WEIGHTS) if (folder / name).exists()]
    if taken and not ((folder / RECORD).is_file() and taken == [_HUB_WEIGHTS]):
        raise UserError(f"{folder} holds another model already ({taken[0]}); choose an empty folder")


def is_saved(folder: Path) -> bool:
    """Whether `save` has written a model there."""
    return (folder / RECORD).is_file()


def load_saved(folder: Path, model: nn.Module | None = None, factory: Factory | None = None) -> nn.Module:
    """Return what `save` has kept, in eval mode: in `model` if it has the same modules, else in its converted copy."""
    body, weights = _read(folder)
    if model is None and factory is None:
        raise UserError(
            f"{folder} holds weights, not code: pass the network that they are of, lowcurve.load(FOLDER, model=net), "
            "as it was before lc.convert or after it, or a function that makes it as factory"
        )
    net = load_factory(factory) if model is None and factory is not None else model
    if not isinstance(net, nn.Module):
        raise UserError(f"expected an nn.Module as model, got {type(net).__name__}")
    if _modules(net) != body["modules"]:
        net = _converted(net, body["conversions"], folder)
    _compare(_modules(net), body["modules"], folder)
    load_weights(net, weights, str(folder))
    return net.eval()


def _converted(net: nn.Module, notes: list[dict[str, Any]], folder: Path) -> nn.Module:
    """Do to a copy of the original what was done to the saved model."""
    net = copy.deepcopy(net)
    for note in notes[len(conversions(net)) :]:
        try:
            if FOLD in note:
                restore_numbers(net, note[FOLD])
                net = fold(net, example(note.get("input")))
                continue
            options = {"last_layer": "unit", **note}  # as it was before notes told
            batch = example(options.pop("input"))
        except (TypeError, KeyError, ValueError, AttributeError, RuntimeError):
            raise UserError(f"{folder}: the conversion cannot be repeated; pass the converted model") from None
        parameter = next(net.parameters(), None)
        if isinstance(batch, Tensor) and parameter is not None:
            batch = batch.to(parameter.device)
        net, _ = convert(net, batch, **options)
    return net


def _modules(model: nn.Module) -> dict[str, str]:
    """Name the class of every module; of a graph also its code, which holds the numbers that `fold` has put there."""
    names = {}
    for name, module in model.named_modules():
        kind = type(module).__name__
        if isinstance(module, fx.GraphModule):
            kind = f"graph {hashlib.sha256(module.code.encode()).hexdigest()[:16]}"
        names[name] = kind
    return names


def _compare(found: dict[str, str], expected: dict[str, str], folder: Path) -> None:
    odd = [name for name in {**expected, **found} if found.get(name) != expected.get(name)]
    if odd:
        name = odd[0]
        raise UserError(
            f"the model passed is not the one saved in {folder}: {name or 'the model itself'} is "
            f"{found.get(name, 'missing')}, expected {expected.get(name, 'none')} ({len(odd)} differ). Pass the "
            "original, the converted or the folded model"
        )


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return record and tensors, each with the checksum that it should have."""
    try:
        body = json.loads(read_bytes(folder / RECORD))
        if not isinstance(body, dict) or body.pop("sha256", None) != _digest(body) or body.get("format") != FORMAT:
            raise UserError(f"{folder / RECORD} has been altered, or is of another version; save the model again")
        if not _WEIGHTS.fullmatch(str(body["weights"])) and body["weights"] != _HUB_WEIGHTS:
            raise UserError(f"{folder / RECORD} names {body['weights']!r} for its weights; expected a file beside it")
        data = read_bytes(folder / body["weights"])
        if hashlib.sha256(data).hexdigest() != body["weights_sha256"]:
            raise UserError(f"{folder / body['weights']} has been altered since it was saved; save the model again")
        return body, load_tensors(data)
    except UserError:
        raise
    except (OSError, ValueError, KeyError, RecursionError, SafetensorError) as error:
        raise UserError(f"cannot read the model in {folder}: {error}; save it again") from None


def _digest(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()

"""Models of other libraries by name: `hf:FOLDER`, transformers' files on this disk, and `timm:NAME[@FILE.safetensors]`.

Nothing is downloaded, no pickle is read and no code of a folder is run. Both normalize inputs as their authors did, by
a first layer, so that the model takes pixels of [0, 1] and returns logits.
"""

import importlib
import importlib.util
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lowcurve.errors import UserError
from lowcurve.files import read_bytes
from lowcurve.layers.residual import Normalize
from lowcurve.outputs import classifier

# Settings of a folder that would fetch or run something that is not in it.
_FOREIGN = ("auto_map", "quantization_config", "use_pretrained_backbone", "trust_remote_code")
_MISSING = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"  # of torchvision's nms and qnms
_schemas: list[torch.library.Library] = []  # a library's definitions last as long as it does


def from_transformers(path: str, input_size: Sequence[int] | None, num_classes: int | None) -> nn.Module:
    """Return the image classifier in a folder that `save_pretrained` has written: config.json and safetensors."""
    folder = Path(path)
    if not (folder / "config.json").is_file() or not any(folder.glob("*.safetensors")):
        raise UserError(
            f"expected hf: with a folder on this disk that holds config.json and *.safetensors, got {path!r}; "
            "save the model there: model.save_pretrained(FOLDER)"
        )
    settings = _json(folder / "config.json")
    foreign = next(_foreign(settings), None)
    if foreign is not None:
        raise UserError(f"{folder}/config.json sets {foreign}, which needs code or files from elsewhere; remove it")
    transformers = imported("transformers")
    with _offline():
        net, found = transformers.AutoModelForImageClassification.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False, use_safetensors=True, output_loading_info=True
        )
    odd = [name for kind in ("missing_keys", "unexpected_keys", "mismatched_keys") for name in found.get(kind) or ()]
    if odd:
        raise UserError(
            f"the weights in {folder} are not those of {type(net).__name__}: {odd[0]} ({len(odd)} differ). A converted "
            "or folded model is kept by lowcurve.save and read by lowcurve.load"
        )
    return _with_pixels(net, *_of_processor(folder))


def from_timm(name: str, input_size: Sequence[int] | None, num_classes: int | None) -> nn.Module:
    """Return timm's network of that name for these inputs and classes, with weights from a file or with new ones."""
    name, _, weights = name.partition("@")
    timm = imported("timm")
    if not re.fullmatch(r"\w[\w.]*", name) or not timm.is_model(name):
        near = get_close_matches(name, timm.list_models()) or ["those of timm.list_models()"]
        raise UserError(f"timm has no network {name!r}; it has {', '.join(near)}")
    options: dict[str, Any] = {} if num_classes is None else {"num_classes": num_classes}
    if input_size is not None:
        options["in_chans"] = input_size[0]
    try:
        size = {"img_size": tuple(input_size[1:])} if input_size is not None and len(input_size) == 3 else {}
        net = timm.create_model(name, pretrained=False, **options, **size)
    except TypeError:  # most convolutional networks take any size
        net = timm.create_model(name, pretrained=False, **options)
    if weights:
        _fill(net, weights)
    taken = getattr(net, "pretrained_cfg", None) or {}
    mean, std = list(taken.get("mean") or (0.0,)), list(taken.get("std") or (1.0,))
    if input_size is not None and input_size[0] != len(mean):  # other channels than the author's: their mean
        mean, std = [sum(mean) / len(mean)], [sum(std) / len(std)]
    return _with_pixels(net, mean, std)


SOURCES: dict[str, Callable[[str, Sequence[int] | None, int | None], nn.Module]] = {
    "hf": from_transformers,
    "timm": from_timm,
}


def imported(name: str) -> Any:
    """Import a library that needs torchvision's Python code, whether or not its compiled operators fit this PyTorch."""
    try:
        if importlib.util.find_spec("torchvision") is not None:
            _import_torchvision()
        return importlib.import_module(name)
    except ImportError as error:
        raise UserError(f"{name} cannot be imported ({error}); install it: pip install {name}") from None


def _import_torchvision() -> None:
    """Import torchvision; where its operators are missing, declare the two that its import asks for."""
    try:
        importlib.import_module("torchvision")
    except RuntimeError as error:
        if "operator torchvision::" not in str(error):
            raise
        for module in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[module]
        library = torch.library.Library("torchvision", "FRAGMENT")
        for operator in ("nms", "qnms"):
            library.define(operator + _MISSING)
        _schemas.append(library)
        importlib.import_module("torchvision")


def _foreign(settings: Any) -> Iterator[str]:
    """Yield what a configuration, or one inside it, would take from elsewhere."""
    if isinstance(settings, dict):
        yield from (name for name in _FOREIGN if settings.get(name))
        for value in settings.values():
            yield from _foreign(value)


@contextmanager
def _offline() -> Iterator[None]:
    """Keep transformers from asking its hub for anything."""
    constants: Any = importlib.import_module("huggingface_hub.constants")
    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def _of_processor(folder: Path) -> tuple[list[float], list[float]]:
    """Return mean and std, in pixels of [0, 1], with which the folder's image processor normalizes."""
    path = folder / "preprocessor_config.json"
    if not path.is_file():
        return [0.0], [1.0]
    settings = _json(path)
    if settings.get("rescale_offset") or settings.get("include_top"):
        raise UserError(
            f"{path} shifts pixels in a way of its own; load the model in a function of yours and name that"
        )
    scale = 255 * float(settings.get("rescale_factor") or 1 / 255) if settings.get("do_rescale", True) else 255.0
    normal = settings.get("do_normalize", "image_mean" in settings)
    mean, std = (settings["image_mean"], settings["image_std"]) if normal else ([0.0], [1.0])
    return [value / scale for value in mean], [value / scale for value in std]


def _with_pixels(net: nn.Module, mean: list[float], std: list[float]) -> nn.Module:
    """Put normalization first, where there is any, and logits last."""
    plain = not any(mean) and all(value == 1 for value in std)
    return classifier(net) if plain else nn.Sequential(Normalize(mean, std), classifier(net))


def _fill(net: nn.Module, weights: str) -> None:
    """Load the tensors of a safetensors file, all of them and no others."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        tensors = load(read_bytes(Path(weights)))
        net.load_state_dict(tensors)
    except (OSError, SafetensorError, RuntimeError) as error:
        raise UserError(
            f"cannot take the weights {weights!r}: {error}; expected a safetensors file with every tensor of the "
            "network, whose last layer has a row for each class of the data"
        ) from None


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_bytes(path))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"cannot read {path}: {error}") from None
    if not isinstance(content, dict):
        raise UserError(f"expected {path} to hold a JSON object, got {type(content).__name__}")
    return content

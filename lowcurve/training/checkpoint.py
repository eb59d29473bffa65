"""How is a run's whole state kept? Tensors in safetensors, the rest in JSON, both checksummed."""

import hashlib
import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from lowcurve.errors import UserError
from lowcurve.files import read_bytes, write_atomic

log = logging.getLogger(__name__)
KEEP = 2
# What an optimizer remembers of a parameter (SGD, AdamW), by its name in a checkpoint.
STATES = {"momentum": "momentum_buffer", "mean": "exp_avg", "square": "exp_avg_sq", "steps": "step"}


class Position(BaseModel):
    """Where training stands: `step` steps into `epoch`, `total` steps from the start, after so many seconds."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    epoch: int = Field(default=0, ge=0)
    step: int = Field(default=0, ge=0)
    total: int = Field(default=0, ge=0)
    seconds: float = Field(default=0.0, ge=0)


@dataclass(frozen=True)
class Checkpoint:
    """The whole state of a run: tensors by name, and where it stands."""

    position: Position
    tensors: dict[str, Tensor]


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Write `folder`/STEP.safetensors, then STEP.json, which completes the pair; keep the last two pairs."""
    data = save({name: tensor.detach().cpu().contiguous().clone() for name, tensor in checkpoint.tensors.items()})
    body = {"position": checkpoint.position.model_dump(), "tensors_sha256": hashlib.sha256(data).hexdigest()}
    stem = f"{checkpoint.position.total:09d}"
    write_atomic(folder / f"{stem}.safetensors", data)
    write_atomic(folder / f"{stem}.json", json.dumps({**body, "sha256": _digest(body)}, indent=1))
    _prune(folder, checkpoint.position.total)


def latest_checkpoint(folder: Path) -> Checkpoint | None:
    """Return the newest intact checkpoint, None where there is none; damaged ones are passed over."""
    candidates = _candidates(folder)
    for path in candidates:
        try:
            return _read(path)
        except (OSError, ValueError, KeyError, TypeError, RecursionError, SafetensorError) as error:
            log.warning("%s is damaged (%s); falling back to the checkpoint before it", path, error)
    if candidates:
        raise UserError(f"no checkpoint in {folder} can be read; delete the run's folder to start anew")
    return None


def _read(path: Path) -> Checkpoint:
    body = json.loads(read_bytes(path))
    if not isinstance(body, dict) or body.pop("sha256", None) != _digest(body):
        raise ValueError("its JSON has been altered")
    data = read_bytes(path.with_suffix(".safetensors"))
    if hashlib.sha256(data).hexdigest() != body["tensors_sha256"]:
        raise ValueError("its tensors have been altered")
    return Checkpoint(Position.model_validate(body["position"]), load(data))


def _digest(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _prune(folder: Path, total: int) -> None:
    """Drop all pairs but the newest, those beyond `total` (they were damaged), and what a killed write has left."""
    kept = [path.stem for path in _candidates(folder) if int(path.stem) <= total][:KEEP]
    for path in folder.iterdir():
        stem = path.name.lstrip(".").partition(".")[0]
        if stem.isdecimal() and (stem not in kept or path.name.startswith(".")):
            path.unlink(missing_ok=True)


def _candidates(folder: Path) -> list[Path]:
    """Return the JSON files of checkpoints, newest first."""
    return sorted((path for path in folder.glob("*.json") if path.stem.isdecimal()), reverse=True)


def training_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return weights, buffers and the optimizer's memory under stable names: `model.NAME`, `momentum.NAME`, …."""
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        remembered = optimizer.state.get(parameter, {})
        for kind, key in STATES.items():
            if remembered.get(key) is not None:
                tensors[f"{kind}.{name}"] = remembered[key]
    return tensors


def restore_training(checkpoint: Checkpoint, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Put a checkpoint's tensors back where `training_tensors` took them from."""
    weights = {name[6:]: tensor for name, tensor in checkpoint.tensors.items() if name.startswith("model.")}
    where = f"checkpoint {checkpoint.position.total}"
    load_weights(model, weights, where)
    for name, parameter in model.named_parameters():
        for kind, key in STATES.items():
            tensor = checkpoint.tensors.get(f"{kind}.{name}")
            if tensor is not None:
                own = torch.zeros((), dtype=torch.float32) if kind == "steps" else torch.zeros_like(parameter.detach())
                _refuse_unsound(own, tensor, f"{where}: {kind}.{name}")
                optimizer.state[parameter][key] = own.copy_(tensor)


def load_weights(model: nn.Module, weights: dict[str, Tensor], where: str) -> None:
    """Load a complete and sound state; a mismatch is explained by its first lines."""
    own = model.state_dict()
    for name in own.keys() & weights.keys():
        _refuse_unsound(own[name].detach(), weights[name], f"{where}: {name}")
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:400]
        raise UserError(f"the weights of {where} do not fit the network of its config.toml: {reason}") from None


def _refuse_unsound(own: Tensor, tensor: Tensor, where: str) -> None:
    """Refuse another type or shape, and values that are no numbers where the network's own are."""
    if (tensor.dtype, tensor.shape) != (own.dtype, own.shape):
        raise UserError(
            f"{where} does not fit the network: expected {own.dtype} of shape {tuple(own.shape)}, got {tensor.dtype} "
            f"of shape {tuple(tensor.shape)}; use the network that it was saved from"
        )
    odd = ~tensor.isfinite() & (tensor != own.to(tensor.device)) if tensor.is_floating_point() else tensor.isnan()
    if odd.any():
        raise UserError(f"{where} holds {int(odd.sum())} value(s) that are no finite numbers; train it again")

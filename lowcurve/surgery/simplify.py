"""Which layers are PyTorch's own in other clothes? Subclasses with a forward of their own that computes the same.

timm's Linear computes what nn.Linear computes; its BatchNormAct2d is a batch norm with an activation behind it, and
becomes both. Whether that is so is tried on copies with random weights and statistics, in eval and in training mode. A
subclass with further weights may compute the same only by chance, as adapters do at first, and stays what it is.
"""

import copy
from collections.abc import Container
from typing import Any

import torch
from torch import Tensor, nn

from lowcurve.compat import DROPOUTS, children, held_tensors
from lowcurve.random import generator
from lowcurve.surgery.hooks import carry_hooks
from lowcurve.surgery.trace import slots

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_SHAPES: dict[type[nn.Module], list[tuple[int, ...]]] = {  # of inputs behind batch and channels
    nn.Linear: [(), (3,)],
    nn.BatchNorm1d: [(), (3,)],
    nn.BatchNorm2d: [(3, 4)],
    nn.BatchNorm3d: [(3, 4, 2)],
}
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def own_forward(module: nn.Module) -> type[nn.Module] | None:
    """Return the layer of torch.nn that a module is a subclass of, where the forward is not that layer's."""
    kind: Any = next((kind for kind in (*_SHAPES, *_CONVOLUTIONS) if isinstance(module, kind)), None)
    return kind if kind is not None and type(module).forward is not kind.forward else None


def simplify(model: nn.Module, untouched: Container[nn.Module]) -> bool:
    """Make such layers PyTorch's own, in place; say whether there were any."""
    changed = False
    places = slots(model)
    for module in list(model.modules()):
        kind = own_forward(module)
        if kind is None or module in untouched or not _can_be(module, kind):
            continue
        parts = _parts(module, kind)
        if not children(module):
            module.__class__ = kind
        elif places.get(module):
            carry_hooks(module, parts)
            for owner, slot in places[module]:
                owner.add_module(slot, parts)
        else:
            continue
        changed = True
    return changed


def _can_be(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether the layer of this kind, and the module's children behind it, do what the module does."""
    inside = children(module)
    state = {*dict(module.named_parameters(recurse=False)), *dict(module.named_buffers(recurse=False))}
    known = {"weight", "bias", *(("running_mean", "running_var", "num_batches_tracked") if kind in _NORMS else ())}
    if not state <= known or (inside and kind not in _NORMS) or "norm" in inside:
        return False
    try:
        twin = copy.deepcopy(module)
        _stir(twin)
        return all(_agree(twin, kind, training) for training in (False, True))
    except Exception:  # whatever a forward of somebody else has against these inputs
        return False


@torch.no_grad()
def _agree(module: nn.Module, kind: type[nn.Module], training: bool) -> bool:
    source = generator(int(training))
    width = next(
        getattr(module, name) for name in ("in_features", "in_channels", "num_features") if hasattr(module, name)
    )
    like = next(module.parameters(), None)
    for rest in _SHAPES.get(kind) or _sizes(module):
        shape = (4, *rest, width) if kind is nn.Linear else (4, width, *rest)
        x = torch.randn(shape, generator=source)
        x = x if like is None else x.to(like)
        one = copy.deepcopy(module).train(training)
        for part in one.modules():
            if isinstance(part, DROPOUTS):
                part.eval()
        other = copy.deepcopy(_parts(copy.deepcopy(one), kind))
        if not _close(one(x.clone()), other(x.clone())):
            return False
        statistics = dict(other.named_buffers())
        if not all(
            _close(value, statistics.get(name, statistics.get(f"norm.{name}"))) for name, value in one.named_buffers()
        ):
            return False
    return True


def _sizes(module: Any) -> list[tuple[int, ...]]:
    """Return sizes of images from the smallest on that a convolution takes, so many that every remainder occurs."""
    reach = [step * (side - 1) + 1 for side, step in zip(module.kernel_size, module.dilation, strict=True)]
    return [tuple(side + i + place for place, side in enumerate(reach)) for i in range(2 * max(module.stride) + 1)]


def _close(first: Tensor, second: Tensor | None) -> bool:
    return second is not None and first.shape == second.shape and torch.allclose(first, second, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def _stir(module: nn.Module) -> None:
    """Draw weights and statistics anew, so that no special value hides a difference."""
    source = generator(2)
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if tensor.is_floating_point():
            noise = torch.rand(tensor.shape, generator=source).to(tensor)
            tensor.copy_(noise + 0.5 if name == "running_var" else 2 * noise - 1)


def _parts(module: nn.Module, kind: type[nn.Module]) -> nn.Module:
    """Return a layer of this kind on the module's own tensors, with the module's children behind it."""
    plain = kind.__new__(kind)
    nn.Module.__init__(plain)
    plain.__dict__.update({name: value for name, value in vars(module).items() if not name.startswith("_")})
    plain.__dict__.update(held_tensors(module))
    inside = children(module)
    if not inside:
        return plain
    behind = nn.Sequential()
    behind.add_module("norm", plain)
    for name, child in inside.items():
        behind.add_module(name, child)
    behind.training = module.training  # the parts have their own modes
    return behind

"""May a model's own `save_pretrained` keep it? Not after surgery: `from_pretrained` would make the old network.

transformers and its like write weights and a configuration, and build the network anew from the latter, with its old
activations. The weights of a folded model even fit it, and the logits are others.
"""

import weakref
from pathlib import Path
from typing import Any

from safetensors.torch import save as save_tensors
from torch import nn

from lowcurve.errors import UserError
from lowcurve.files import make_folder, write_atomic

SAVE_PRETRAINED = "save_pretrained"
_REASON = (
    "a converted or folded model cannot be kept by save_pretrained: from_pretrained would build the network with its "
    "old layers and give other logits. Keep it by lowcurve.save(model, FOLDER) and bring it back by "
    "lowcurve.load(FOLDER, model=the original network); lowcurve.save(model, FOLDER, hub=True) adds a model card"
)


class _Refusal:
    """What stands in place of the method of `owner`; a pickle of it is the reason as text, which needs no lowcurve."""

    def __init__(self, owner: nn.Module) -> None:
        self._owner = weakref.ref(owner)

    def __call__(self, save_directory: Any = None, *_: Any, **options: Any) -> None:
        """Refuse; a training loop that asks for its checkpoint (transformers' Trainer) gets the weights alone.

        It is known by its `state_dict=`, a dict or None for the model's own.
        """
        owner = self._owner()
        if "state_dict" not in options or owner is None or vars(owner).get(SAVE_PRETRAINED) is not self:
            raise UserError(_REASON)
        state = options["state_dict"] or owner.state_dict()
        weights = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in state.items()}
        folder = make_folder(Path(save_directory))
        write_atomic(folder / "model.safetensors", save_tensors(weights, metadata={"format": "pt"}))

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Refusal":
        """Belong to the owner's copy, which is being made."""
        owner = self._owner()
        return self if owner is None else _Refusal(memo.get(id(owner), owner))

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (_REASON,)


def guard(model: nn.Module) -> None:
    """Put a refusal in place of the method of every module that has one."""
    for module in model.modules():
        if callable(getattr(type(module), SAVE_PRETRAINED, None)):
            module.__dict__[SAVE_PRETRAINED] = _Refusal(module)

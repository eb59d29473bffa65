"""Every private name of PyTorch that this package uses, each with what stands for it where it is missing.

Where a private name answers a question, its stand-in gives the careful answer: "somebody may be looking on", say,
so that modules are called one by one. That is slower and as right.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
NORMS_WITH_STATISTICS = (*BATCH_NORMS, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)

_C: Any = torch._C
_graph_task = getattr(_C, "_current_graph_task_id", None)
_will_execute = getattr(_C, "_will_engine_execute_node", None)
_transforms = getattr(_C, "_are_functorch_transforms_active", None)
_dispatch_modes = getattr(_C, "_len_torch_dispatch_stack", None)
_function_modes = getattr(_C, "_len_torch_function_stack", None)
_current_mode = getattr(torch.overrides, "_get_current_function_mode", None)
_global_hooks = getattr(nn.modules.module, "_has_any_global_hook", None)


def will_execute(node: Any) -> bool:
    """Whether the running backward will call `node`; yes where nobody knows."""
    if node is None or _will_execute is None:
        return node is not None
    try:
        return bool(_will_execute(node))
    except RuntimeError:  # a leaf that autograd.grad asks for
        return True


def backward_is_running() -> bool:
    """Whether this call is part of a backward; no where nobody knows."""
    return _graph_task is not None and bool(_graph_task() != -1)


def transforms_are_active() -> bool:
    """Whether a function transform (vmap, grad, jvp, functionalization) is around this call."""
    return _transforms is None or bool(_transforms())


def forward_mode_is_active() -> bool:
    """Whether forward-mode derivatives are computed."""
    return int(getattr(torch.autograd.forward_ad, "_current_level", 0)) >= 0


def dispatch_modes_are_active() -> bool:
    """Whether a mode wants to see or to replace operations."""
    return _dispatch_modes is None or bool(_dispatch_modes() > 0)


def function_modes_other_than(mode: type[TorchFunctionMode]) -> bool:
    """Whether a mode other than one of this class wants to see or to replace functions."""
    if _function_modes is None or _current_mode is None:
        return True
    count = _function_modes()
    return bool(count > 1 or (count == 1 and type(_current_mode()) is not mode))


def without_torch_function() -> AbstractContextManager[Any]:
    """Return a context in which no mode is asked about functions."""
    return getattr(_C, "DisableTorchFunction", _C.DisableTorchFunctionSubclass)()


def has_global_hooks() -> bool:
    """Whether hooks are registered for all modules."""
    return _global_hooks is None or bool(_global_hooks())


def is_compiled(module: nn.Module) -> bool:
    """Whether `module.compile()` was called."""
    return getattr(module, "_compiled_call_impl", None) is not None


def check_input_dimensions(norm: nn.Module, x: Tensor) -> None:
    """Let a batch norm refuse an input with a wrong number of dimensions, as it does when it is called."""
    norm._check_input_dim(x)  # type: ignore[operator]


def foreach(name: str, *arguments: Any) -> Any:
    """Do one operation for all tensors of lists: by one kernel where PyTorch has that, else one by one.

    >>> a, b = [torch.ones(2)], [torch.full((2,), 3.0)]
    >>> foreach("sub", b, a)[0].tolist()
    [2.0, 2.0]
    """
    together = getattr(torch, f"_foreach_{name}", None)
    return _one_by_one(name, *arguments) if together is None else together(*arguments)


def _one_by_one(name: str, tensors: Sequence[Tensor], *others: Any) -> list[Tensor]:
    found = []
    for i, tensor in enumerate(tensors):
        own = (other[i] if isinstance(other, list | tuple) else other for other in others)
        found.append(getattr(torch.Tensor, name)(tensor, *own))
    return found

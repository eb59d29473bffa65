"""Every private name of PyTorch that this package uses, each with what stands for it where it is missing.

Where a private name answers a question, its stand-in gives the careful answer: "somebody may be looking on", say,
so that modules are called one by one. That is slower and as right.
"""

from collections.abc import MutableMapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode

from lowcurve.errors import UserError

try:
    from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm
except ImportError:
    BatchNorm = nn.BatchNorm2d  # type: ignore[misc]
try:
    from torch.utils._python_dispatch import TorchDispatchMode
except ImportError:
    TorchDispatchMode = None  # type: ignore[misc,assignment]


def _with_base(module: Any, base: str, *classes: type[nn.Module]) -> tuple[type[nn.Module], ...]:
    """Return PyTorch's own classes of a kind and, for those of others, the base that they have in common."""
    return (*classes, *([getattr(module, base)] if hasattr(module, base) else []))


BATCH_NORMS = (BatchNorm, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
NORMS_WITH_STATISTICS = _with_base(nn.modules.batchnorm, "_NormBase", *BATCH_NORMS, *_INSTANCE_NORMS)
_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
DROPOUTS = _with_base(nn.modules.dropout, "_DropoutNd", *_DROPOUTS)
# What listens to a module, by what calls it: dictionaries from a handle's number to a hook, or to a flag of that hook.
FORWARD_HOOKS = ("_forward_pre_hooks", "_forward_hooks")
BACKWARD_HOOKS = ("_backward_pre_hooks", "_backward_hooks")
HOOKS = (*FORWARD_HOOKS, *BACKWARD_HOOKS)
_FLAGS = ("_forward_pre_hooks_with_kwargs", "_forward_hooks_with_kwargs", "_forward_hooks_always_called")
CALL_HOOKS = (*HOOKS, *_FLAGS)
STATE_HOOKS = (
    "_state_dict_pre_hooks",
    "_state_dict_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)
_GLOBAL_FORWARD_HOOKS = ("_global_forward_pre_hooks", "_global_forward_hooks")
_GLOBAL_BACKWARD_HOOKS = ("_global_backward_pre_hooks", "_global_backward_hooks")

_C: Any = torch._C
_graph_task = getattr(_C, "_current_graph_task_id", None)
_will_execute = getattr(_C, "_will_engine_execute_node", None)
_transforms = getattr(_C, "_are_functorch_transforms_active", None)
_saved_hooks = getattr(getattr(_C, "_autograd", None), "_top_saved_tensors_default_hooks", None)
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


def saved_tensors_are_hooked() -> bool:
    """Whether hooks get what graphs save, as those of checkpointing do; yes where nobody knows."""
    return _saved_hooks is None or _saved_hooks(False) is not None


def function_modes_other_than(mode: type[TorchFunctionMode]) -> bool:
    """Whether a mode other than one of this class wants to see or to replace functions."""
    if _function_modes is None or _current_mode is None:
        return True
    count = _function_modes()
    return bool(count > 1 or (count == 1 and type(_current_mode()) is not mode))


def innermost_function_mode() -> TorchFunctionMode | None:
    """Return the mode that sees functions first; None where there is none, or nobody knows."""
    return None if _current_mode is None else _current_mode()


def without_torch_function() -> AbstractContextManager[Any]:
    """Return a context in which no mode is asked about functions."""
    return getattr(_C, "DisableTorchFunction", _C.DisableTorchFunctionSubclass)()


def has_global_hooks() -> bool:
    """Whether hooks are registered for all modules; yes where nobody knows."""
    if _global_hooks is not None:
        return bool(_global_hooks())
    found = [getattr(nn.modules.module, name, None) for name in (*_GLOBAL_FORWARD_HOOKS, *_GLOBAL_BACKWARD_HOOKS)]
    return None in found or any(found)


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


def cloned(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return copies, without graph, by one operation for each kind of tensor."""
    copies = [torch.empty_like(tensor) for tensor in tensors]
    kinds: dict[Any, list[int]] = {}
    for i, tensor in enumerate(tensors):
        kinds.setdefault((tensor.device, tensor.dtype, tensor.layout), []).append(i)
    with torch.no_grad():
        for own in kinds.values():
            foreach("copy_", [copies[i] for i in own], [tensors[i].detach() for i in own])
    return copies


def _one_by_one(name: str, tensors: Sequence[Tensor], *others: Any) -> list[Tensor]:
    found = []
    for i, tensor in enumerate(tensors):
        own = (other[i] if isinstance(other, list | tuple) else other for other in others)
        found.append(getattr(torch.Tensor, name)(tensor, *own))
    return found


def children(module: nn.Module) -> dict[str, nn.Module]:
    """Return the modules that `module` holds by name, one with two names twice (`named_children` gives it once).

    >>> shared = nn.ReLU()
    >>> list(children(nn.Sequential(shared, shared)))
    ['0', '1']
    """
    held = getattr(module, "_modules", None)
    if held is None:
        below = module.named_modules(remove_duplicate=False)
        return {name: child for name, child in below if name and "." not in name}
    return {name: child for name, child in held.items() if child is not None}


def child(module: nn.Module, name: str) -> nn.Module | None:
    """Return the child of that name, without the search and the error of `getattr` where there is none."""
    held = getattr(module, "_modules", None)
    return children(module).get(name) if held is None else held.get(name)


def held_tensors(module: nn.Module) -> dict[str, Any]:
    """Return the attributes in which a module holds its own parameters and buffers, missing ones too."""
    names = ("_parameters", "_buffers", "_non_persistent_buffers_set")
    if not all(name in vars(module) for name in names):
        raise UserError(
            f"expected a PyTorch whose modules have {names[0]}, got {torch.__version__}; use a tried version"
        )
    return {name: vars(module)[name] for name in names}


def function_of(node: Any) -> type[torch.autograd.Function] | None:
    """Return the Function of somebody's own behind a node of a graph; None for PyTorch's own, or if nobody knows."""
    return getattr(node, "_forward_cls", None)


def hooks(module: nn.Module, name: str) -> MutableMapping[int, Any]:
    """Return the hooks of one kind (of `CALL_HOOKS` or `STATE_HOOKS`); nobody who cannot see them may go on."""
    found: MutableMapping[int, Any] = _held(module, name)
    return found


def _held(module: nn.Module, name: str) -> Any:
    found = getattr(module, name, None)
    if found is None:
        raise UserError(f"expected a PyTorch whose modules have {name}, got {torch.__version__}; use a tried version")
    return found


def keep_kind_of_backward_hooks(old: nn.Module, new: nn.Module) -> None:
    """Let `new` call backward hooks as `old` did, where hooks have kinds."""
    if getattr(old, "_is_full_backward_hook", None) is not None:
        new._is_full_backward_hook = old._is_full_backward_hook


def has_global_backward_hooks() -> bool:
    """Whether backward hooks are registered for all modules; where nobody knows, whether any hooks are."""
    found = [getattr(nn.modules.module, name, None) for name in _GLOBAL_BACKWARD_HOOKS]
    return has_global_hooks() if None in found else any(found)


def has_global_forward_hooks() -> bool:
    """Whether forward hooks are registered for all modules; where nobody knows, whether any hooks are."""
    found = [getattr(nn.modules.module, name, None) for name in _GLOBAL_FORWARD_HOOKS]
    return has_global_hooks() if None in found else any(found)


def write_count(tensor: Tensor) -> int:
    """Return a number that changes when the tensor is written in place: its version, or a hash of its content."""
    version: int | None = None if tensor.is_inference() else getattr(tensor, "_version", None)
    if version is not None:
        return version
    return hash(tensor.detach().cpu().flatten().view(torch.uint8).numpy().tobytes())


def convolution_of(kind: type[nn.Module]) -> Any:
    """Return the method by which a class of convolutions applies its weight, None where `forward` does that itself."""
    return getattr(kind, "_conv_forward", None)


def forget_tracer(graph: fx.Graph) -> None:
    """Let the graph forget the class that traced it, or unpickling would need that class."""
    if hasattr(graph, "_tracer_cls"):
        graph._tracer_cls = None


def forget_source(name: str) -> None:
    """Let torch.fx forget the source of a graph module; where its store is elsewhere, some bytes stay."""
    loader = getattr(fx.graph_module, "_loader", None)
    getattr(loader, "eval_cache", {}).pop(name, None)


def keep_through_copies(module: fx.GraphModule, attributes: dict[str, Any]) -> None:
    """Let copies of a graph module keep plain attributes; where torch.fx has no place for them, copies lack them."""
    key = getattr(fx.graph_module, "_USER_PRESERVED_ATTRIBUTES_KEY", None)
    if key is not None:
        module.meta[key] = attributes


def schema_of(target: Any) -> Any:
    """Return what an operator of PyTorch says of its arguments and results, None for other functions and tensors."""
    return getattr(target, "_schema", None)


def writes_in_place(operation: Any) -> bool:
    """Whether an operation, as a dispatch mode is given it, writes to one of its arguments; yes where nobody knows."""
    schema = schema_of(operation)
    return schema is None or bool(schema.is_mutable)

"""Does the graph of a model say all that the model does? What could make it differ is refused before tracing.

A traced graph shows calls, not what hooks, overridden methods and shared memory make of them. Hooks and instances
whose methods were replaced are refused, and so is an operation that overwrites a tensor which something reads later,
under this name or another.
"""

import copy
from collections.abc import Callable, Iterator

import torch
from torch import fx, nn
from torch.nn.utils import parametrize

from lowcurve.compat import (
    BACKWARD_HOOKS,
    FORWARD_HOOKS,
    has_global_backward_hooks,
    has_global_forward_hooks,
    hooks,
    is_compiled,
)
from lowcurve.errors import UserError

_OF_PYTORCH = ("torch.nn.", "lowcurve.")


def plain_copy(model: nn.Module, *, gradients: bool = False) -> nn.Module:
    """Return a copy on the processor in eval mode, with every parametrized tensor at the value that it is given.

    The copy is what is traced: nothing done to it can change the model. A model with anything hidden is refused. This
    package's own hooks only compute for all layers at once what each derives for itself, and stay behind.
    """
    refuse_hidden(model, gradients=gradients)
    try:
        twin = copy.deepcopy(model).cpu().eval().requires_grad_(False)
    except Exception as error:
        raise UserError(f"expected a model that can be copied, got {type(model).__name__}: {error}") from error
    for name, module in list(twin.named_modules()):
        if module.training:
            raise UserError(
                f"expected a model that eval() puts in eval mode, got {_where(name, module)} in training mode"
            )
        if parametrize.is_parametrized(module):
            _settle(name, module)
        for kind in FORWARD_HOOKS:
            hooks(module, kind).clear()
    for name, tensor in (*twin.named_parameters(), *twin.named_buffers()):
        _refuse_values(name, tensor)
    return twin


def refuse_hidden(model: nn.Module, *, gradients: bool = False) -> None:
    """Refuse hooks, compiled modules and methods that were replaced; backward hooks where `gradients` are spoken of."""
    if not isinstance(model, nn.Module):
        raise UserError(f"expected an nn.Module, got {type(model).__name__}")
    if has_global_forward_hooks():
        raise UserError("expected no hooks, got a global forward hook, which may change results; remove it")
    if gradients and has_global_backward_hooks():
        raise UserError("expected no hooks, got a global backward hook, which may change gradients; remove it")
    for name, module in model.named_modules():
        if gradients and any(hooks(module, kind) for kind in BACKWARD_HOOKS):
            raise UserError(f"cannot bound gradients: {_where(name, module)} has a backward hook; remove it")
        for what, remedy in _hidden(module):
            raise UserError(f"cannot bound this model: {_where(name, module)} {what}; {remedy}")


def _hidden(module: nn.Module) -> Iterator[tuple[str, str]]:
    """Yield what a trace of the module would not show, and what to do about it."""
    listening = [hook for name in FORWARD_HOOKS for hook in hooks(module, name).values()]
    if any(not str(getattr(hook, "__module__", "")).startswith("lowcurve.layers.") for hook in listening):
        yield (
            "has a forward hook, which may change what it computes",
            "remove it (legacy weight_norm, spectral_norm and prune are hooks too: use parametrizations, prune.remove)",
        )
    if is_compiled(module):
        yield "is compiled, and compilers change the arithmetic", "certify the model before compile()"
    kind = type(module)
    if not isinstance(module, fx.GraphModule) and kind.__call__ is not nn.Module.__call__:
        yield "has a __call__ of its own", "write it as forward"
    replaced = [name for name in vars(module) if callable(getattr(kind, name, None))]
    if replaced:
        yield f"has its method {replaced[0]!r} replaced on the instance", "write a subclass"
    if _is_patched(kind):
        yield "has a class whose forward was replaced", "write a subclass instead"


def _is_patched(kind: type[nn.Module]) -> bool:
    """Whether somebody gave a class of PyTorch or of this package another forward than it was defined with."""
    owner = next((base for base in kind.__mro__ if "forward" in vars(base)), kind)
    defined_in = str(getattr(vars(owner).get("forward"), "__module__", ""))
    return owner.__module__.startswith(_OF_PYTORCH) and not defined_in.startswith(_OF_PYTORCH)


def _settle(name: str, module: nn.Module) -> None:
    """Replace the parametrized tensors of a copied module by their values.

    Not by `remove_parametrizations`, which changes the class that the copy shares with the original.
    """
    tensors = [{key: getattr(module, key).detach().clone() for key in module.parametrizations} for _ in range(2)]  # type: ignore[union-attr]
    if not all(torch.equal(value, tensors[1][key]) for key, value in tensors[0].items()):
        raise UserError(f"expected parametrizations with one value, got random ones in {_where(name, module)}")
    kind = parametrize.type_before_parametrizations(module)
    del module.parametrizations
    module.__class__ = kind
    for key, value in tensors[0].items():
        module.register_parameter(key, nn.Parameter(value, requires_grad=False))


def _refuse_values(name: str, tensor: torch.Tensor) -> None:
    """Refuse what is no plain tensor of finite numbers, or in float64 beyond the range in which bounds are computed."""
    if type(tensor) not in (torch.Tensor, nn.Parameter) or tensor.layout is not torch.strided or tensor.is_quantized:
        raise UserError(f"expected plain tensors in the model, got {type(tensor).__name__} for {name}")
    if not tensor.is_floating_point():
        return
    if not bool(tensor.isfinite().all()):
        raise UserError(
            f"expected finite numbers in the model, got NaN or infinity in {name}; train it again or load it"
        )
    if tensor.dtype is torch.float64:
        sizes = tensor.abs()[tensor != 0].double()
        if sizes.numel() and not 1e-100 <= float(sizes.min()) <= float(sizes.max()) <= 1e100:
            raise UserError(f"expected numbers from 1e-100 to 1e100 in the model, got others in {name}; rescale it")


def refuse_overwritten(
    graph: fx.Graph, overwrites: Callable[[fx.Node], bool], aliases: Callable[[fx.Node], bool]
) -> None:
    """Refuse an operation that works in place on memory which a later operation reads under another name.

    Every node belongs to the memory of its inputs where it `aliases` or `overwrites` them, else to its own. After an
    operation in place its result may be read, and what is made from that, but no earlier name of the same memory.
    """
    order = {node: i for i, node in enumerate(graph.nodes)}
    memory: dict[fx.Node, set[fx.Node]] = {}
    for node in graph.nodes:
        shared = {node}
        if overwrites(node) or aliases(node):
            shared = shared.union(*(memory[source] for source in node.all_input_nodes))
        for member in shared:
            memory[member] = shared
        if overwrites(node):
            late = [user for member in shared - {node} for user in member.users if order[user] > order[node]]
            if late:
                raise UserError(
                    f"cannot bound this model: {node.name} works in place and {late[0].name} reads what it overwrites; "
                    "use the value that it returns, or inplace=False"
                )


def _where(name: str, module: nn.Module) -> str:
    return f"{type(module).__name__} at {name!r}" if name else type(module).__name__

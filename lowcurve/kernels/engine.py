"""What does a backward in Python need to know of the engine that runs it?"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from lowcurve.compat import (
    backward_is_running,
    forward_mode_is_active,
    saved_tensors_are_hooked,
    transforms_are_active,
    will_execute,
)

LARGEST_EXPONENT = 88.0
_PLAIN = (Tensor, Parameter)


def gradient_is_wanted(ctx: Any, index: int) -> bool:
    """Whether the running backward will use the gradient of a function's input: not all that could be is asked for.

    No input before that one may be anything but a tensor: PyTorch counts only these.
    """
    return ctx.needs_input_grad[index] and will_execute(ctx.next_functions[index][0])


def as_separate_input(tensor: Tensor, create_graph: bool) -> Tensor:
    """Return `tensor` as an input of its own: gradients in it do not include those through other such inputs.

    What is computed from it can be differentiated in the original too where a graph is asked for.
    """
    return tensor.view_as(tensor) if create_graph and tensor.requires_grad else tensor.detach().requires_grad_()


def graph_nodes(root: Any) -> Iterator[Any]:
    """Yield every node of the graph behind `root`, the `grad_fn` of a tensor, once.

    >>> x = torch.ones(1, requires_grad=True)
    >>> [type(node).__name__ for node in graph_nodes((x * x).grad_fn)]
    ['MulBackward0', 'AccumulateGrad']
    """
    waiting, seen = [root], set()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [following for following, _ in node.next_functions]
            yield node


def bounded_exp(x: Tensor) -> Tensor:
    """Return eˣ, and e⁸⁸, near float32's largest number, for all beyond: an infinite one would have no derivative."""
    return x.clamp_max(LARGEST_EXPONENT).exp()


def is_transformed(x: object) -> bool:
    """Whether a tracer, a compiler or a function transform looks on, for which autograd functions are opaque.

    So it is with tensors of other classes, which know PyTorch's operators but not this package's.
    """
    return (
        type(x) not in _PLAIN
        or torch.compiler.is_compiling()
        or transforms_are_active()
        or forward_mode_is_active()
        or torch.jit.is_tracing()
    )


def in_backward() -> bool:
    """Whether this is a backward: a forward inside it is the repetition of one that was checkpointed."""
    return not torch.compiler.is_compiling() and backward_is_running()


def repeated_in_backward() -> bool:
    """Whether this forward repeats an earlier one (checkpointing), or may be repeated so: both must save the same."""
    return not torch.compiler.is_compiling() and (backward_is_running() or saved_tensors_are_hooked())


@torch.library.custom_op("lowcurve::snapshot", mutates_args=())
def snapshot(x: Tensor) -> Tensor:
    """Copy a buffer that a forward is about to change, for compilers, which may compute anything else twice.

    A compiled backward otherwise reads the changed buffer where a forward's own operations are cheap to repeat.
    """
    return x.clone()


snapshot.register_fake(torch.empty_like)

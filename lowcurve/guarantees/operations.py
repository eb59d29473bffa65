"""Does a model run the operations that its graph shows, and no others? Both are run and compared, call by call.

What tracing does not see is often not a step: another precision inside `torch.autocast`, a write to memory, a branch
that a real tensor takes and a traced one does not, gradients that are switched off. Values alone may not tell.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn

from lowcurve import compat
from lowcurve.compat import writes_in_place
from lowcurve.errors import UserError
from lowcurve.surgery.graphs import graph_module
from lowcurve.surgery.nested import tensors


class Operation(NamedTuple):
    """One call of PyTorch's: its name, the types of all tensors in it, whether it writes in place."""

    name: str
    dtypes: tuple[torch.dtype, ...]
    writes: bool
    precision: str  # of float32 products
    differentiable: bool  # whether gradients are switched on around it


def operations(run: Callable[[], Any]) -> list[Operation]:
    """Return all operations that PyTorch is asked for while `run()` runs.

    >>> [(operation.name, operation.writes) for operation in operations(lambda: torch.zeros(2).mul_(2))]
    [('aten::zeros', False), ('aten::mul_.Tensor', True)]
    """
    if compat.TorchDispatchMode is None:
        raise UserError(f"expected a PyTorch with dispatch modes, got {torch.__version__}; use a tried version")
    found: list[Operation] = []

    class Recorder(compat.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            dtypes = tuple(tensor.dtype for tensor in tensors((args, kwargs or {}, result)))
            around = torch.get_float32_matmul_precision(), torch.is_grad_enabled()
            found.append(Operation(func.name(), dtypes, writes_in_place(func), *around))
            return result

    with Recorder():
        run()
    return found


def refuse_unseen(model: nn.Module, graph: fx.Graph, x: Tensor, *, gradients: bool) -> None:
    """Refuse a model that runs other operations on x than its graph does.

    Where `gradients` are spoken of, they must be switched on around the same operations, too.
    """
    traced = graph_module(model, graph)
    with torch.enable_grad():
        seen, real = (operations(lambda run=run: run(x.clone())) for run in (traced, model))  # type: ignore[misc]
    if not gradients:
        seen, real = ([operation._replace(differentiable=True) for operation in each] for each in (seen, real))
    if seen == real:
        return
    written, writes = ([operation.name for operation in each if operation.writes] for each in (seen, real))
    if written != writes:
        unseen = set(writes) - set(written) or set(writes) or set(written)
        raise UserError(
            f"cannot bound this model: its forward works in place ({', '.join(sorted(unseen))}) where torch.fx does "
            "not see it; write it out of place, y = y - 1 instead of y -= 1"
        )
    first = next((pair[1] for pair in zip(seen, real, strict=False) if pair[0] != pair[1]), (real or seen)[-1])
    raise UserError(
        f"cannot bound this model: its forward runs {first.name} in another way than torch.fx sees; remove autocast, "
        "no_grad, counters and branches on data from it"
    )

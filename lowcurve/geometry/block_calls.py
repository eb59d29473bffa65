"""How is a block called inside a network? Each call noted as a function of its own, at the input that it got."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lowcurve.errors import UserError
from lowcurve.geometry.functions import Of, local_model, twice_differentiable
from lowcurve.geometry.hvp import explained
from lowcurve.surgery.nested import clone_tensors, tensors


class BlockCall(nn.Module):
    """One call of a block as a function of its first tensor, (1, *shape); further arguments are as they were."""

    def __init__(self, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.block = block
        self.first = _first((args, kwargs), block)
        self.arguments = [*args, *kwargs.values()]
        self.moving = [value is self.first for value in self.arguments]
        self.names = [None] * len(args) + list(kwargs)

    def detach(self) -> Tensor:
        """Keep values without their graphs; return the first tensor's."""
        h = self.first.detach().clone()
        self.arguments = [v.detach().clone() if isinstance(v, Tensor) else v for v in self.arguments]
        del self.first
        return h

    def forward(self, h: Tensor) -> Tensor:
        """Call the block on h in place of its first tensor."""
        values = [h[0] if moves else value for value, moves in zip(self.arguments, self.moving, strict=True)]
        kwargs = {name: value for name, value in zip(self.names, values, strict=True) if name is not None}
        args = [value for name, value in zip(self.names, values, strict=True) if name is None]
        return _first(self.block(*args, **kwargs), self.block).unsqueeze(0)


def _first(value: Any, block: nn.Module) -> Tensor:
    for tensor in tensors(value):
        if tensor.is_floating_point():
            return tensor
    raise UserError(f"expected a block that takes and returns numbers, got {type(block).__name__}; leave it out")


def block_calls(
    model: nn.Module, x: Tensor, y: Tensor, of: Of, chosen: dict[str, nn.Module]
) -> Iterator[tuple[str, BlockCall, Tensor, Tensor]]:
    """Run one sample; yield (name, call, its input h, u) for each call of a block, u of the shape of the output."""
    calls: list[tuple[str, BlockCall, Tensor]] = []
    with torch.enable_grad(), _watching(chosen, lambda *call: calls.append(call)):
        outputs = twice_differentiable(model, x.detach().clone().requires_grad_())
        value = local_model(of)(outputs, y)[0].sum()
        used = [output for *_, output in calls if output.requires_grad]
        with explained():
            slopes = iter(torch.autograd.grad(value, used, materialize_grads=True) if used else ())
    times: defaultdict[str, int] = defaultdict(int)
    for name, call, output in calls:
        slope = next(slopes) if output.requires_grad else torch.zeros_like(output)
        times[name] += 1
        u = F.normalize(slope.flatten(), dim=0).view_as(slope)
        yield name if times[name] == 1 else f"{name}#{times[name]}", call, call.detach(), u


@contextmanager
def _watching(chosen: dict[str, nn.Module], note: Callable[[str, BlockCall, Tensor], None]) -> Iterator[None]:
    """Note every call of the blocks; what follows works on copies, so that nothing noted is overwritten."""
    begun: list[BlockCall] = []

    def before(block: nn.Module, args: Any, kwargs: Any) -> Any:
        begun.append(BlockCall(block, args, kwargs))
        same = dict(zip(map(id, begun[-1].arguments), map(clone_tensors, begun[-1].arguments), strict=True))
        return tuple(same[id(v)] for v in args), {name: same[id(v)] for name, v in kwargs.items()}

    def after(name: str) -> Callable[..., Any]:
        def hook(block: nn.Module, _args: Any, output: Any) -> Any:
            note(name, begun.pop(), _first(output, block))
            return clone_tensors(output)

        return hook

    handles = [block.register_forward_pre_hook(before, with_kwargs=True) for block in chosen.values()]
    handles += [block.register_forward_hook(after(name)) for name, block in chosen.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()

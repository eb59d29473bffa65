"""What does a model's forward really do? One run that records who calls which module and which function.

The run needs no symbolic tracing, so it works for any Python code in `forward`. It sees, for each module, the
functions that its own forward calls (not those of its children), the children it calls and how often, the sizes of
its inputs, and which module alone reads the output of a convolution or linear layer.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from lowcurve.errors import UserError
from lowcurve.observe import observing
from lowcurve.outputs import logits_of
from lowcurve.surgery.nested import as_call, clone_tensors, tensors
from lowcurve.surgery.rules import AFTER_THE_LAST, ATTENTIONS, MATRIX_PRODUCTS, SOFTMAXES

LINEAR_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True)
class FunctionCall:
    """Arguments of one functional call, with every tensor reduced to whether it is a parameter."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    takes_parameter: bool


@dataclass
class ForwardRecord:
    """What one module's own forward did; counts are the largest over its invocations."""

    functions: dict[Callable[..., Any], list[FunctionCall]] = field(default_factory=dict)
    calls: Counter[nn.Module] = field(default_factory=Counter)
    invocations: int = 0
    arguments: tuple[tuple[Any, ...], dict[str, Any]] | None = None
    input_sizes: list[tuple[int, ...]] = field(default_factory=list)

    def merge(self, other: "ForwardRecord") -> None:
        """Add what another invocation of the same module did."""
        self.calls |= other.calls
        for function, calls in other.functions.items():
            if len(calls) > len(self.functions.get(function, ())):
                self.functions[function] = calls
        self.arguments = self.arguments or other.arguments
        self.input_sizes += other.input_sizes

    def attends(self) -> bool:
        """Whether this forward computes an attention: by PyTorch's function, or as softmax with matrix products."""
        called = self.functions.keys()
        by_hand = bool(called & SOFTMAXES) and bool(called & MATRIX_PRODUCTS)
        return by_hand or bool(called & ATTENTIONS)


class Probe(TorchFunctionMode):
    """The record of one forward: `records` by module, `output`, `last` layers, and `reader(layer)`."""

    def __init__(self) -> None:
        super().__init__()
        self.records: dict[nn.Module, ForwardRecord] = {}
        self.output: Any = None
        self.last: set[nn.Module] = set()  # linear layers whose outputs are the logits, but for what keeps their scale
        self._carried: dict[int, tuple[set[nn.Module], Tensor]] = {}  # which layers' outputs are in a tensor
        self._stack: list[tuple[nn.Module, ForwardRecord]] = []
        self._made: dict[int, tuple[nn.Module, Tensor]] = {}  # the tensor is kept, so that its id stays its own
        self._readers: defaultdict[nn.Module, list[nn.Module | None]] = defaultdict(list)

    def reached(self, module: nn.Module) -> bool:
        """Whether the forward called `module`."""
        return module in self.records

    def reader(self, layer: nn.Module) -> nn.Module | None:
        """Return the module that alone reads the output of a linear layer, once; None where there is no such one."""
        readers = self._readers[layer]
        if len(readers) != 1 or readers[0] is None or self.records[layer].invocations != 1:
            return None
        return readers[0] if self.records[readers[0]].invocations == 1 else None

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run `func` and note who called it with what."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if self._stack and next(tensors(result), None) is not None:
            self._note(func, args, kwargs, result)
        return result

    def _note(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        module, record = self._stack[-1]
        inputs = list(tensors((args, kwargs)))
        if not inputs:
            return
        call = FunctionCall(
            tuple(None if isinstance(value, Tensor) else value for value in args),
            {name: value for name, value in kwargs.items() if not isinstance(value, Tensor)},
            any(isinstance(tensor, nn.Parameter) for tensor in inputs),
        )
        record.functions.setdefault(func, []).append(call)
        for tensor in inputs:
            if id(tensor) in self._made:
                self._readers[self._made[id(tensor)][0]].append(module)
        if isinstance(module, LINEAR_LAYERS) and isinstance(result, Tensor):
            self._made[id(result)] = (module, result)
            self._carried[id(result)] = ({module}, result)
        elif func in AFTER_THE_LAST and isinstance(result, Tensor):
            parts = [tensor for tensor in inputs if not isinstance(tensor, nn.Parameter)]
            if parts and all(id(tensor) in self._carried for tensor in parts):
                self._carried[id(result)] = (set().union(*(self._carried[id(t)][0] for t in parts)), result)

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Forward pre-hook: a module starts."""
        if self._stack:
            self._stack[-1][1].calls[module] += 1
        record = ForwardRecord(arguments=(args, kwargs))
        first = next(tensors((args, kwargs)), None)
        if isinstance(module, LINEAR_LAYERS[1:]) and first is not None:
            dims = len(module.kernel_size)
            record.input_sizes.append(tuple(first.shape[-dims:]))
        self._stack.append((module, record))

    def leave(self, module: nn.Module, *_unused: Any) -> None:
        """Forward hook: a module ends."""
        _, record = self._stack.pop()
        known = self.records.setdefault(module, ForwardRecord())
        known.merge(record)
        known.invocations += 1

    def join(self, other: "Probe") -> None:
        """Add what another run called; outputs, readers and numbers of invocations stay those of this run."""
        for module, record in other.records.items():
            self.records.setdefault(module, ForwardRecord()).merge(record)

    def finish(self, output: Any) -> None:
        """Keep the output; what the model returns is read by its caller too."""
        self.output = output
        with suppress(UserError):  # not a classifier
            found = self._carried.get(id(logits_of(output)), (set(),))[0]
            self.last = {layer for layer in found if self.records[layer].invocations == 1}
        self._carried.clear()
        for tensor in tensors(output):
            if id(tensor) in self._made:
                self._readers[self._made[id(tensor)][0]].append(None)
        self._made.clear()


def probe(model: nn.Module, example_input: Any) -> Probe:
    """Run `model` on the example and return what happened; the model stays as it was.

    The run is in eval mode. A second one in training mode adds what is called only then (auxiliary heads); it is
    ignored where it fails, as batch norm does on a single sample.
    """
    try:
        watch = _run(model, example_input, training=False)
    except Exception as error:
        raise UserError(
            f"{type(model).__name__} fails on example_input: {type(error).__name__}: {error}. Expected a batch as the "
            "model takes it (a tuple for several arguments, a dict for keyword arguments), on the model's device"
        ) from error
    with suppress(Exception):
        watch.join(_run(model, example_input, training=True))
    return watch


def run_once(model: nn.Module, example_input: Any) -> Probe:
    """Run `model` in eval mode only; what it raises passes through."""
    return _run(model, example_input, training=False)


def _run(model: nn.Module, example_input: Any, training: bool) -> Probe:
    args, kwargs = clone_tensors(as_call(model, example_input))  # the model may overwrite its input
    watch = Probe()
    devices = {parameter.device for parameter in model.parameters() if parameter.is_cuda}
    forked = torch.random.fork_rng(devices=list(devices))
    with observing(model), torch.no_grad(), forked, _hooks(model, watch), watch:
        model.train(training)
        output = model(*args, **kwargs)
    watch.finish(output)
    return watch


@contextmanager
def _hooks(model: nn.Module, watch: Probe) -> Iterator[None]:
    handles = []
    for module in model.modules():
        handles.append(module.register_forward_pre_hook(watch.enter, with_kwargs=True, prepend=True))
        handles.append(module.register_forward_hook(watch.leave, always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()

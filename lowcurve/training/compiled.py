"""How is a whole training step compiled? Its graph, gradients included, is one function without a branch.

A step is then: singular vectors follow the weights, the function, and its results go where they belong. Nothing waits
for the device, and buffers keep their place in memory, so that a GPU can record the step and replay it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from lowcurve.compat import foreach
from lowcurve.errors import UserError
from lowcurve.layers.counting import raise_counters
from lowcurve.layers.together import Together
from lowcurve.training.step import TrainingStep
from lowcurve.training.traced import TracedStep, trace


class CompiledStep:
    """A `TrainingStep` that is compiled when it is first called, once for every size of a batch.

    It is called alike, and has the same results but for rounding. What the network's Python code decides in the first
    step, by anything but the sizes of tensors, modes and which parameters learn, holds for all.
    """

    def __init__(self, step: TrainingStep, backend: str = "inductor") -> None:
        if isinstance(step.model, DistributedDataParallel):
            raise UserError("expected a step of the model itself, got one behind DistributedDataParallel; unwrap it")
        self.step, self.model, self.backend = step, step.model, backend
        self._together = Together(step.model)
        self._known: dict[Any, tuple[TracedStep, Callable[..., Sequence[Tensor]]]] = {}

    def __call__(self, x: Tensor, y: Tensor, targets: Tensor | None = None) -> dict[str, Tensor]:
        """Set every parameter's gradient of the whole loss; return its summands and the batch's accuracy."""
        inputs = [x, y] if targets is None else [x, y, targets]
        parameters, buffers = list(self.model.parameters()), list(self.model.buffers())
        with self._together, torch.no_grad():
            traced, function = self._function(inputs, parameters)
            values, gradients, moved = traced.split(function(*parameters, *buffers, *inputs))
        for parameter in parameters:
            parameter.grad = None
        for place, gradient in zip(traced.with_gradient, gradients, strict=True):
            parameters[place].grad = gradient
        if traced.moved:
            foreach("copy_", [buffers[place] for place in traced.moved], list(moved))
        raise_counters([buffers[place] for place in traced.counted])
        return values

    def _function(self, inputs: list[Tensor], parameters: list[Any]) -> tuple[TracedStep, Callable[..., Any]]:
        """Return the compiled function for inputs such as these."""
        modes = tuple(module.training for module in self.model.modules())
        kinds = tuple((t.shape, t.stride(), t.dtype, t.device) for t in inputs)
        key = (kinds, modes, tuple(p.requires_grad for p in parameters))
        if key not in self._known:
            traced = trace(self.step, inputs)
            self._known[key] = traced, self._compiled(traced)
        return self._known[key]

    def _compiled(self, traced: TracedStep) -> Callable[..., Any]:
        noise = {"options": {"fallback_random": True}} if self.backend == "inductor" else {}  # as eager steps have it
        return torch.compile(traced.graph.forward, fullgraph=True, dynamic=False, backend=self.backend, **noise)  # type: ignore[call-overload]

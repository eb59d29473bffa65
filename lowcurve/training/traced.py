"""How does a training step become one graph? It is taken once, and PyTorch writes down every operation.

Autograd works as ever meanwhile, so that gradients, and those of gradients by this package's formulas, are operations
of the graph like all others. What a step changes goes in and comes out as values: (parameters, buffers, inputs) ↦
(summands of the loss, gradients, buffers). Operators that pass over activations are written out as their definitions in
plain PyTorch, for a compiler to join with what is around them; those that serve all layers at once stay what they are.
"""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.func import functional_call

from lowcurve.errors import UserError
from lowcurve.kernels import ops, reference
from lowcurve.layers.counting import counted_by_caller
from lowcurve.layers.spectral import SpectralNorm
from lowcurve.training.merged import merge_equal
from lowcurve.training.step import TrainingStep

_FOR_ALL_LAYERS = ("scales", "scales_gradient", "unit_weights", "unit_weights_gradient")
_DEFINITIONS = {getattr(ops, name): getattr(reference, name) for name in ops.NAMES if name not in _FOR_ALL_LAYERS}
_TOLERANCE = 1e-2  # of the largest gradient, between a step and its graph; other noise would make a larger difference
_REMEDY = "leave train.compile out"


class TracedStep(NamedTuple):
    """A graph of flat lists: (parameters, buffers, inputs) ↦ (summands, gradients, buffers)."""

    graph: fx.GraphModule
    summands: tuple[str, ...]
    with_gradient: tuple[int, ...]  # places of the parameters that have one
    moved: tuple[int, ...]  # places of the buffers that are returned
    counted: tuple[int, ...]  # places of the counters of batches that a step raises, as often as it does

    def split(self, results: Sequence[Tensor]) -> tuple[dict[str, Tensor], Sequence[Tensor], Sequence[Tensor]]:
        """Return summands by name, gradients and buffers from what the graph returns."""
        first, second = len(self.summands), len(self.summands) + len(self.with_gradient)
        return dict(zip(self.summands, results, strict=False)), results[first:second], results[second:]


def trace(step: TrainingStep, inputs: Sequence[Tensor]) -> TracedStep:
    """Take `step` of (x, y) or (x, y, targets) once, on copies, and return its graph; the model stays as it is.

    Singular vectors must stand still meanwhile. What a graph cannot repeat is refused.
    """
    from torch.fx.experimental.proxy_tensor import make_fx

    function = _StepAsFunction(step)
    tensors = [t.detach() for t in (*step.model.parameters(), *step.model.buffers(), *inputs)]
    with _decided_by_values_alone(step.model):
        try:
            with _noise_put_back(inputs[0]):
                graph = make_fx(function, _DEFINITIONS)(*tensors)
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[0]
            raise UserError(f"this network's step cannot be written as one graph ({reason}); {_REMEDY}") from error
    _forget_detached(graph)
    merge_equal(graph.graph)
    graph.recompile()
    traced = TracedStep(graph, function.summands, function.with_gradient, function.moved, function.counted)
    with _noise_put_back(inputs[0]), torch.no_grad():
        _check_repeats(traced.split(function.results), traced.split(graph(*tensors)))
    return traced


def _forget_detached(graph: fx.GraphModule) -> None:
    """Let compilers see that what autograd has set apart is the same tensor, and read a shorter graph."""
    for node in list(graph.graph.nodes):
        if node.target is torch.ops.aten.detach.default:
            node.replace_all_uses_with(node.args[0])
            graph.graph.erase_node(node)
    graph.recompile()


class _StepAsFunction:
    """A step as a function of tensors, which remembers what it has returned."""

    def __init__(self, step: TrainingStep) -> None:
        self.whole = _Whole(step)
        self.learning = {name: p.requires_grad for name, p in self.whole.named_parameters()}
        self.buffers = [name for name, _ in self.whole.named_buffers()]
        still = {id(b) for m in step.model.modules() if isinstance(m, SpectralNorm) for b in m.buffers()}
        self.moved = tuple(i for i, buffer in enumerate(step.model.buffers()) if id(buffer) not in still)
        self.summands: tuple[str, ...] = ()
        self.with_gradient: tuple[int, ...] = ()
        self.counted: tuple[int, ...] = ()
        self.results: list[Tensor] = []

    def __call__(self, *tensors: Tensor) -> list[Tensor]:
        count = len(self.learning) + len(self.buffers)
        state = dict(zip((*self.learning, *self.buffers), tensors, strict=False))
        state |= {name: state[name].detach().requires_grad_(learns) for name, learns in self.learning.items()}
        moved = {self.buffers[i]: state[self.buffers[i]].clone() for i in self.moved}
        with torch.enable_grad(), counted_by_caller() as counters:
            values, gradients = functional_call(self.whole, state | moved, _laid_out(tensors[count:]))
        places = {id(moved[self.buffers[i]]): i for i in self.moved}
        self.counted = tuple(places[id(counter)] for counter in counters if id(counter) in places)  # others are copies
        self.moved = tuple(i for i in self.moved if i not in self.counted)
        self.summands = tuple(values)
        self.with_gradient = tuple(i for i, gradient in enumerate(gradients) if gradient is not None)
        self.results = [*values.values(), *(gradients[i] for i in self.with_gradient)]
        self.results += [moved[self.buffers[i]] for i in self.moved]
        return self.results


class _Whole(nn.Module):
    """A step as a module, whose parameters and buffers `functional_call` can replace."""

    def __init__(self, step: TrainingStep) -> None:
        super().__init__()
        self.model, self.step = step.model, step

    def forward(self, *inputs: Tensor) -> tuple[dict[str, Tensor], list[Tensor | None]]:
        values = self.step(*inputs)
        return values, [parameter.grad for parameter in self.model.parameters()]


def _laid_out(inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return the inputs with images in the order of memory that compilers give convolutions on CPUs.

    PyTorch's changes the order of single tensors otherwise, and copies them to and fro.
    """
    x, *rest = inputs
    if x.ndim == 4 and x.device.type == "cpu":
        x = x.contiguous(memory_format=torch.channels_last)
    return x, *rest


@contextmanager
def _noise_put_back(x: Tensor) -> Iterator[None]:
    with torch.random.fork_rng(devices=[x.device] if x.device.type == "cuda" else []):
        yield


@contextmanager
def _decided_by_values_alone(model: nn.Module) -> Iterator[None]:
    """Refuse a model whose forward goes by numbers of its own, which a graph would keep as they were."""
    before = _own_numbers(model)
    yield
    after = _own_numbers(model)
    changed = [name for name, value in before.items() if name in after and not np.array_equal(value, after[name])]
    if changed:
        raise UserError(
            f"a step changes {', '.join(changed[:3])}, which would stay as it is in a step that is compiled; {_REMEDY}"
        )


def _own_numbers(model: nn.Module) -> dict[str, Any]:
    """Return the plain attributes of every module, and the state of generators that are not PyTorch's."""
    found: dict[str, Any] = {"the generator of Python": random.getstate()[1]}
    found["the generator of NumPy"] = np.random.get_state()[1]  # type: ignore[index] # noqa: NPY002 (others use it)
    for name, module in model.named_modules():
        plain = {key: value for key, value in vars(module).items() if isinstance(value, bool | int | float | str)}
        found |= {f"{name}.{key}" if name else key: value for key, value in plain.items()}
    return found


def _check_repeats(step: Any, graph: Any) -> None:
    """Refuse a graph that does not compute what the step did: noise that was put back, say, is drawn anew in it."""
    for mine, theirs in zip(step, graph, strict=True):
        pairs = list(zip(*(list(t.values()) if isinstance(t, dict) else t for t in (mine, theirs)), strict=True))
        largest = max((float(a.detach().abs().nan_to_num().amax()) for a, _ in pairs if a.numel()), default=0.0)
        if any(not torch.allclose(b, a, rtol=0, atol=_TOLERANCE * largest, equal_nan=True) for a, b in pairs):
            raise UserError(
                "a graph of this step computes something else than the step, which sets the state of a generator ("
                f"dropout in CURE, in attacks in training mode or in checkpointed segments); {_REMEDY}"
            )

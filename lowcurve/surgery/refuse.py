"""Which models are refused, and what should their owner do? Every refusal names the module and the remedy."""

from collections import defaultdict
from collections.abc import Container, Iterator
from functools import singledispatch
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils import parametrize

from lowcurve.compat import NORMS_WITH_STATISTICS, BatchNorm, convolution_of, write_count
from lowcurve.errors import UserError
from lowcurve.layers.normalized import spectral_of
from lowcurve.layers.softplus import CenteredSoftplus
from lowcurve.layers.traits import smooth
from lowcurve.linalg.linear_map import LinearMap
from lowcurve.surgery.probe import LINEAR_LAYERS, Probe, probe
from lowcurve.surgery.report import where
from lowcurve.surgery.rules import LINEAR_FUNCTIONS, MATRIX_PRODUCTS, MODULE_OF, REFUSED, refusal

_WRAPPERS = {
    "DistributedDataParallel": "convert model.module, then wrap the result",
    "DataParallel": "convert model.module, then wrap the result",
    "FullyShardedDataParallel": "convert the model before it is sharded",
    "FSDPModule": "convert the model before it is sharded",
    "OptimizedModule": "convert first, then call torch.compile on the result (the original is model._orig_mod)",
    "ScriptModule": "convert the Python model, then script the result",
    "RecursiveScriptModule": "convert the Python model, then script the result",
}
_SHOWN = 8
_QUANTIZED = ("torch.ao.", "torch.nn.quantized", "torch.nn.intrinsic", "torch.nn.qat", "torchao.", "bitsandbytes.")


def refuse_wrapped(model: nn.Module) -> None:
    """Refuse what cannot be copied and changed: wrapped, compiled, scripted, quantized and lazy modules."""
    if not isinstance(model, nn.Module):
        raise UserError(f"expected an nn.Module, got {type(model).__name__}")
    for module in model.modules():
        kind = type(module)
        remedy = next((_WRAPPERS[base.__name__] for base in kind.__mro__ if base.__name__ in _WRAPPERS), None)
        if kind.__module__.startswith(_QUANTIZED) or any(p.is_quantized for p in module.parameters(recurse=False)):
            remedy = "convert and train the float model, then quantize the result of lowcurve.fold"
        elif isinstance(module, LazyModuleMixin):
            remedy = "run the model once, so that its lazy layers know their size"
        if remedy is not None:
            raise UserError(f"cannot convert {where(module, model)}; {remedy}")


def refuse_unconvertible(
    model: nn.Module, run: Probe, untouched: Container[nn.Module], *, activation: bool, batchnorm: bool, spectral: bool
) -> None:
    """Refuse a model of which only a part could be converted; every offending module is listed."""
    switches = {"activation": activation, "batchnorm": batchnorm, "spectral": spectral}
    problems = []
    for module in model.modules():
        if module in untouched or not run.reached(module) or smooth(module):
            continue
        problems += [
            f"{where(module, model)}: {text}"
            for switch, text in (*_layer_problems(module, run), *_function_problems(module, run))
            if switches[switch]
        ]
    if spectral:
        problems += _tied_weights(model, run, untouched)
    if model in untouched:
        problems.append(f"{where(model, model)}: attention and all the rest share one forward; make attention a module")
    if problems:
        more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        raise UserError("this model could only be converted in part. " + "; ".join(problems[:_SHOWN]) + more)


def refuse_overwritten_outputs(model: nn.Module, example_input: Any) -> None:
    """Refuse a model that changes the output of a centered softplus in place: its gradients are computed from that."""
    outputs: list[tuple[nn.Module, Tensor, int]] = []

    def note(module: nn.Module, _inputs: Any, output: Tensor) -> None:
        outputs.append((module, output, write_count(output)))

    handles = [m.register_forward_hook(note, prepend=True) for m in model.modules() if isinstance(m, CenteredSoftplus)]
    try:
        probe(model, example_input)
    finally:
        for handle in handles:
            handle.remove()
    changed = [module for module, output, version in outputs if write_count(output) != version]
    if changed:
        raise UserError(
            f"{where(changed[0], model)}: what it returns is changed in place (x += y, a module with "
            "inplace=True), which its gradient does not allow; write x = x + y, or build the model with inplace=False"
        )


def is_linear_layer(module: nn.Module) -> bool:
    """Whether a layer applies its weight as PyTorch's own Linear and Conv do, so that spectral norm reaches it."""
    return isinstance(module, LINEAR_LAYERS) and any(
        type(module).forward is kind.forward and convolution_of(type(module)) is convolution_of(kind)
        for kind in LINEAR_LAYERS
    )


def _layer_problems(module: nn.Module, run: Probe) -> Iterator[tuple[str, str]]:
    """Yield (switch, text) for a layer that has no rule, or whose rule does not apply."""
    refused = refusal(module)
    if refused is not None:
        yield refused
    yield from _unmet(module, run)


@singledispatch
def _unmet(module: nn.Module, run: Probe) -> Iterator[tuple[str, str]]:
    """Yield (switch, text) where a layer of this class is not as its rule needs it; one registration per class."""
    yield from ()


@_unmet.register
def _(module: nn.LeakyReLU, run: Probe) -> Iterator[tuple[str, str]]:
    if not 0 <= module.negative_slope <= 1:
        yield "activation", f"negative_slope {module.negative_slope:g} is outside [0, 1]; use one inside"


@_unmet.register
def _(module: BatchNorm, run: Probe) -> Iterator[tuple[str, str]]:
    if not module.track_running_stats:
        yield "batchnorm", "without running statistics it has no eval-mode constant; set track_running_stats=True"
    if type(module).forward not in (nn.BatchNorm2d.forward, nn.SyncBatchNorm.forward):
        yield "batchnorm", "its own forward does more than normalize; use nn.BatchNorm1d or 2d, or batchnorm=False"


@_unmet.register(nn.Linear)
@_unmet.register(nn.Conv1d)
@_unmet.register(nn.Conv2d)
@_unmet.register(nn.Conv3d)
def _(module: nn.Module, run: Probe) -> Iterator[tuple[str, str]]:
    if spectral_of(module) is not None:
        return
    if not is_linear_layer(module):
        yield "spectral", "its own forward hides what is done to the weight; use the plain layer, or spectral=False"
    elif parametrize.is_parametrized(module, "weight") or "weight" not in _own_parameters(module):
        yield "spectral", "its weight is parametrized already; remove that first, or pass spectral=False"
    else:
        try:
            LinearMap.of(module, input_size(module, run))
        except UserError as error:
            yield "spectral", f"{error}, or pass spectral=False"


def _function_problems(module: nn.Module, run: Probe) -> Iterator[tuple[str, str]]:
    """Yield (switch, text) for weights and statistics that a forward applies by functions."""
    for function, calls in run.records[module].functions.items():
        with_parameter = any(call.takes_parameter for call in calls)
        linear = function in LINEAR_FUNCTIONS or (function in MATRIX_PRODUCTS and with_parameter)
        if linear and not isinstance(module, (*LINEAR_LAYERS, *REFUSED)):
            yield (
                "spectral",
                f"{function.__name__} applies a weight that is no layer's; use nn.Linear or nn.Conv*d, or pass "
                "spectral=False",
            )
        if function is nn.functional.batch_norm and not isinstance(module, NORMS_WITH_STATISTICS):
            yield "batchnorm", "batch_norm is called as a function; use nn.BatchNorm1d or 2d, or batchnorm=False"
        stands_for = MODULE_OF.get(function, (None,))[0]
        if stands_for in REFUSED and not isinstance(module, stands_for):
            yield REFUSED[stands_for]


def _own_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    return dict(module.named_parameters(recurse=False, remove_duplicate=False))


def _tied_weights(model: nn.Module, run: Probe, untouched: Container[nn.Module]) -> list[str]:
    owners: dict[nn.Parameter, list[str]] = defaultdict(list)
    to_normalize = set()
    for name, module in model.named_modules():
        own = _own_parameters(module)
        for parameter in own.values():
            owners[parameter].append(name)
        if is_linear_layer(module) and run.reached(module) and module not in untouched:
            to_normalize.add(own.get("weight"))
    return [
        f"{' and '.join(names)}: they share one weight; untie them, or pass spectral=False"
        for parameter, names in owners.items()
        if len(names) > 1 and parameter in to_normalize
    ]


def input_size(module: nn.Module, run: Probe) -> tuple[int, ...] | None:
    """Return the largest size at which a convolution was used; zero-padded, its norm there bounds all the others."""
    sizes = run.records[module].input_sizes
    return tuple(map(max, *sizes)) if len(sizes) > 1 else sizes[0] if sizes else None

"""How does every activation become a module of its own, whatever the model's forward looks like?

`separate_activations` leaves the function as it is: afterwards each place that applies an activation holds a module
that is used there and nowhere else, out of place. Replacing activations is then a matter of replacing modules.

Most models need little for this: a module used once stays. Where a forward calls a function (`F.relu`, `x.relu_()`)
or one module several times, that one forward, with its children as black boxes, is traced by torch.fx and its
calls are given modules. The rest of the model is not traced, so it may contain any Python code. The result is run
beside the original; where it differs, or cannot be traced, the model is refused by name.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from lowcurve.compat import children
from lowcurve.errors import UserError
from lowcurve.layers.traits import learned
from lowcurve.surgery.inlined import is_inlined
from lowcurve.surgery.nested import tensors
from lowcurve.surgery.probe import ForwardRecord, FunctionCall, Probe, probe, run_once
from lowcurve.surgery.report import where
from lowcurve.surgery.rewrite import module_for, rewrite, spelled
from lowcurve.surgery.rules import MODULE_OF, REPLACED, activation_rule


def separate_activations(
    model: nn.Module, example_input: Any, before: Probe, untouched: Container[nn.Module]
) -> tuple[Probe, dict[nn.Module, str]]:
    """Give each activation site outside `untouched` a module of its own; the model is changed, its function is not.

    `before` is a run of the model on the example. Returns a run of the result, and for each module that was made from a
    function the function's name.
    """
    origins: dict[nn.Module, str] = {}
    callers = _callers_in_need(model, before, untouched)
    suspects = [where(module, model) for module in callers]
    _rewrite(model, before, callers, origins)
    mutating = _make_out_of_place(model, untouched)
    after = probe(model, example_input)
    if _reads_overwritten(model, example_input, mutating):
        for module in mutating:
            module.inplace = True  # type: ignore[assignment]
        callers = _callers_of(mutating, model, after, untouched)
        suspects += [where(module, model) for module in callers]
        _rewrite(model, after, callers, origins)
        mutating = _make_out_of_place(model, untouched)
        after = probe(model, example_input)
    if _reads_overwritten(model, example_input, mutating) or not _same(before.output, after.output):
        raise UserError(
            f"{', '.join(suspects) or where(model, model)}: an activation changes its input in place and something "
            "else reads that input, which no replacement can imitate; use the value that the activation returns, or "
            "build the model with inplace=False"
        )
    return after, origins


def activation_functions(record: ForwardRecord) -> Iterator[tuple[Callable[..., Any], list[FunctionCall]]]:
    """Yield the functional activations that a forward calls, with the calls."""
    for function, calls in record.functions.items():
        if function in MODULE_OF and MODULE_OF[function][0] in REPLACED:
            yield function, calls


def slots(model: nn.Module) -> dict[nn.Module, list[tuple[nn.Module, str]]]:
    """Return, for each module, the (owner, name) pairs under which it is registered; shared modules have several."""
    places: dict[nn.Module, list[tuple[nn.Module, str]]] = defaultdict(list)
    for owner in model.modules():
        for name, child in children(owner).items():
            places[child].append((owner, name))
    return places


def _names(model: nn.Module) -> dict[nn.Module, str]:
    return {module: name for name, module in model.named_modules()}


def _callers_of(
    children: set[nn.Module], model: nn.Module, run: Probe, untouched: Container[nn.Module]
) -> list[nn.Module]:
    """Return the modules whose own forward calls one of `children` and may be rewritten, deepest first."""
    names = _names(model)
    callers = [module for module, record in run.records.items() if children & record.calls.keys()]
    fit = [m for m in callers if m not in untouched and not is_inlined(m) and not isinstance(m, nn.Sequential)]
    return sorted(fit, key=lambda module: -names[module].count("."))


def _callers_in_need(model: nn.Module, run: Probe, untouched: Container[nn.Module]) -> list[nn.Module]:
    """Return the modules whose own forward must be rewritten, deepest first."""
    names, shared = _names(model), _shared_activations(model, run)
    needy = [
        module
        for module, record in run.records.items()
        if module not in untouched
        and activation_rule(module) is None
        and (module in shared or (not learned(module) and any(True for _ in activation_functions(record))))
    ]
    return sorted(needy, key=lambda module: -names[module].count("."))


def _shared_activations(model: nn.Module, run: Probe) -> set[nn.Module]:
    """Return the modules that call an activation more often than they hold it.

    One that they do not hold themselves (it may be in a ModuleList) has to be held as often as it has callers.
    """
    places = slots(model)
    callers = Counter(child for record in run.records.values() for child in record.calls)
    sharing = set()
    for module, record in run.records.items():
        for child, count in record.calls.items():
            held = sum(owner is module for owner, _ in places[child]) or int(callers[child] == len(places[child]))
            if activation_rule(child) is not None and count > held:
                sharing.add(module)
    return sharing


def _rewrite(model: nn.Module, run: Probe, callers: list[nn.Module], origins: dict[nn.Module, str]) -> None:
    """Give the activations of each caller modules, one caller after the other."""
    for module in callers:
        record = run.records[module]
        if _hold_as_module(module, record, origins):
            continue
        rewrite(module, record, where(module, model), origins)


def _hold_as_module(module: nn.Module, record: ForwardRecord, origins: dict[nn.Module, str]) -> bool:
    """Where the forward's one functional activation is an attribute (`self.act = F.gelu`), set that to a module."""
    found = list(activation_functions(record))
    repeated = any(count > 1 and activation_rule(child) is not None for child, count in record.calls.items())
    if repeated or len(found) != 1 or len(found[0][1]) != 1:
        return False
    function, (call,) = found[0]
    holders = [name for name, value in vars(module).items() if value is function]
    if len(holders) != 1:
        return False
    made = module_for(function, call.args[1:], call.kwargs)
    origins[made] = spelled(function)
    setattr(module, holders[0], made)
    return True


def _make_out_of_place(model: nn.Module, untouched: Container[nn.Module]) -> set[nn.Module]:
    """Switch activations that overwrite their input to ones that do not; return those modules."""
    changed = set()
    for module in model.modules():
        if module not in untouched and activation_rule(module) is not None and getattr(module, "inplace", False):
            module.inplace = False  # type: ignore[assignment]
            changed.add(module)
    return changed


def _reads_overwritten(model: nn.Module, example_input: Any, mutating: set[nn.Module]) -> bool:
    """Whether anything reads an input of these activations after them, which they once changed in place.

    Each spoils its input when it is done, so the answer depends on neither the weights nor the example's values.
    """
    if not mutating:
        return False

    def spoil(_module: nn.Module, inputs: tuple[Any, ...], _output: Any) -> None:
        for tensor in tensors(inputs):
            tensor.fill_(torch.nan if tensor.is_floating_point() else 0)

    clean = run_once(model, example_input)
    handles = [module.register_forward_hook(spoil, prepend=True) for module in mutating]
    try:
        return not _same(clean.output, run_once(model, example_input).output, rtol=0.0)
    finally:
        for handle in handles:
            handle.remove()


def _same(first: Any, second: Any, rtol: float = 1e-4) -> bool:
    """Whether outputs are the same up to a share of the largest value."""
    ours, theirs = list(tensors(first)), list(tensors(second))
    return len(ours) == len(theirs) and all(
        a.shape == b.shape and _close(a, b, rtol) for a, b in zip(ours, theirs, strict=True)
    )


def _close(first: Tensor, second: Tensor, rtol: float) -> bool:
    known = first[first.isfinite()]
    room = rtol * float(known.abs().max()) if known.numel() else 0.0
    return torch.allclose(first, second, rtol=rtol, atol=room, equal_nan=True)

"""Every public function × every parameter × nonsense of its kind, read off the signatures."""

import inspect
import os
import tempfile
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

import lowcurve as lc
from tests.boundary import subjects, values
from tests.boundary.outcome import ACCEPTED, REFUSED, Outcome, outcome_of

# What a call needs where nothing is wrong, by name of the parameter; `OWN` where a function means something else by it.
GOOD: dict[str, Callable[[], Any]] = {
    "model": subjects.net,
    "module": subjects.layer,
    "x": subjects.images,
    "y": subjects.labels,
    "example_input": subjects.images,
    "name": lambda: "fgsm",
    "eps": lambda: 0.1,
    "input_size": lambda: subjects.SHAPE,
    "body": nn.Identity,
    "mean": lambda: 0.5,
    "std": lambda: 0.5,
    "num_features": lambda: 3,
    "features": lambda: 3,
    "channels": lambda: 3,
    "radius": lambda: 0.1,
    "image_size": lambda: 8,
    "width": lambda: 2,
    "path": lambda: Path(tempfile.mkdtemp()) / "saved",
    "config": lambda: _recipe(),
    "run": lambda: "no-such-run",
}
OWN: dict[tuple[str, str], Callable[[], Any]] = {
    ("operator_norm", "input_size"): lambda: (5, 5),
    ("operator_norm_bound", "input_size"): lambda: (5, 5),
    ("spectral_norm", "input_size"): lambda: (5, 5),
    ("gradient_stability", "samples"): lambda: 1,
    ("local_linearity", "samples"): lambda: 1,
    ("gradient_stability", "radii"): lambda: (0.1,),
    ("local_linearity", "radii"): lambda: (0.1,),
}
# Values of a table that these parameters take.
FINE: dict[str, Callable[[Any], bool]] = {
    "norm": lambda value: value == values.INFINITY,
    "mean": lambda value: value in (-1.0, [-0.1, 0.1]),
    "skip": lambda value: value == [],
    "of": callable,
    "factory": callable,
    "activation": callable,
    "memory": lambda value: value == values.HUGE,
    "delta": lambda value: value == values.INFINITY,
}
RUNS_THE_MODEL = {
    "curvature",
    "block_geometry",
    "gradient_stability",
    "local_linearity",
    "attack",
    "certify",
    "explanation_bound",
}


def _differentiable() -> tuple[Tensor, Tensor]:
    x = subjects.images().requires_grad_()
    return x, x.flatten(1).square().sum(1)


def _recipe() -> Any:
    from lowcurve.training.config import parse_config

    tree = {
        "output": tempfile.mkdtemp(),
        "data": {"limit_train": 8, "limit_test": 4},
        "model": {"name": "mlp", "width": 2},
        "train": {"epochs": 1},
    }
    return parse_config(tree)


@dataclass(frozen=True)
class Case:
    """One call: everything right but one argument, which must or may be refused."""

    function: str
    parameter: str
    title: str
    make: Callable[[], Any]
    must: bool


def public() -> dict[str, Callable[..., Any]]:
    """Return all that can be called by a public name, but for records: they are checked where they are used."""
    found = {name: getattr(lc, name) for name in lc.__all__ if callable(getattr(lc, name))}
    found = {name: function for name, function in found.items() if not is_dataclass(function)}
    return found | {f"MODELS[{name!r}]": model for name, model in lc.MODELS.items()}


def parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(function, eval_str=True).parameters.values())


def cases(name: str) -> Iterator[Case]:
    """Yield the calls of one function, a row of bad values per parameter."""
    for parameter in parameters(public()[name]):
        fine = FINE.get(parameter.name, lambda value: False)
        for title, make, must in _bad(name, parameter):
            value = make()
            if not (_plain(value) and fine(value)):
                yield Case(name, parameter.name, title, make, must)
        if parameter.default is None or _kinds(parameter.annotation) & {type(None), Any}:
            continue
        yield Case(name, parameter.name, "None", lambda: None, True)


def _plain(value: Any) -> bool:
    return not isinstance(value, (Tensor, nn.Module))


def _bad(name: str, parameter: inspect.Parameter) -> Iterator[tuple[str, Callable[[], Any], bool]]:
    kinds = _kinds(parameter.annotation)
    if nn.Module in kinds:
        yield from _bad_modules(name, parameter.name)
    elif Tensor in kinds and float not in kinds:
        wrong, odd = (
            (values.LABELS, values.ODD_LABELS) if parameter.name == "y" else (values.TENSORS, values.ODD_TENSORS)
        )
        yield from ((title, make, True) for title, make in wrong.items())
        yield from ((title, make, False) for title, make in odd.items())
    elif parameter.name == "example_input":
        yield from ((title, make, False) for title, make in {**values.TENSORS, **values.ODD_TENSORS}.items())
    else:
        yield from ((_short(value), lambda value=value: value, True) for value in _row(parameter.name, kinds))


def _row(name: str, kinds: set[Any]) -> list[Any]:
    if bool in kinds:
        return values.FLAG
    if name in ("input_size", "image_size"):
        return values.SIZE
    if Sequence in kinds and float not in kinds:
        return values.NUMBERS
    if Sequence in kinds:
        return [value for value in values.NUMBERS if value != [-1.0]] + values.NUMBER
    if float in kinds:
        return values.NUMBER
    if int in kinds and str not in kinds:
        return values.WHOLE
    if os.PathLike in kinds or Path in kinds:
        return values.PATH
    if str in kinds:
        return values.NAME
    return values.OTHER


def _bad_modules(function: str, parameter: str) -> Iterator[tuple[str, Callable[[], Any], bool]]:
    for value in (*values.ALIENS, "text", nn.Linear, subjects.images()):
        yield _short(value), lambda value=value: value, True
    if parameter == "module":
        wrong, odd, must = subjects.WRONG_LAYERS, subjects.ODD_LAYERS, True
    else:
        wrong, odd, must = subjects.WRONG, subjects.ODD, function in RUNS_THE_MODEL
    yield from ((title, make, must) for title, make in wrong.items())
    yield from ((title, make, False) for title, make in odd.items())


def _kinds(annotation: Any) -> set[Any]:
    """Return the types of an annotation, those inside unions too; a generic one counts as its origin."""
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        return {kind for part in typing.get_args(annotation) for kind in _kinds(part)}
    if origin is typing.Literal:
        return {type(value) for value in typing.get_args(annotation)}
    return {origin or annotation}


def _short(value: Any) -> str:
    return repr(value)[:40]


def arguments(name: str) -> dict[str, Any]:
    """Return good arguments for everything that a function asks for."""
    if name == "gradient_penalty":
        return dict(zip(("x", "losses"), _differentiable(), strict=True))
    found = {}
    for parameter in parameters(public()[name]):
        make = OWN.get((name, parameter.name)) or (
            GOOD.get(parameter.name) if parameter.default is inspect.Parameter.empty else None
        )
        if make is not None:
            found[parameter.name] = make()
        elif name.startswith("MODELS") and parameter.name in GOOD:
            found[parameter.name] = GOOD[parameter.name]()
    return found


def run(case: Case) -> Outcome:
    """Make the call and say what came of it."""
    given = arguments(case.function) | {case.parameter: case.make()}
    return outcome_of(lambda: public()[case.function](**given))


def failures(name: str) -> tuple[int, list[str]]:
    """Return the number of calls of one function, and those that did not end as they must; first the good one."""
    found = outcome_of(lambda: public()[name](**arguments(name)))
    count, wrong = 0, [] if found.what == ACCEPTED or name == "load" else [f"{name}, nothing wrong: {found}"]
    for case in cases(name):
        count += 1
        found = run(case)
        if not found.good or (case.must and found.what != REFUSED):
            wrong.append(f"{name}({case.parameter}={case.title}): {found}")
    return count, wrong

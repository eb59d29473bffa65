"""Can the machine catch anything? Each oracle must find what is broken here on purpose, and shrink it."""

from collections.abc import Callable
from dataclasses import replace
from itertools import count, islice
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lowcurve.attacks import verify
from lowcurve.geometry import curvature
from lowcurve.guarantees import certificate, explanation, operator_norm, residual, summary
from lowcurve.kernels import norm, softplus
from lowcurve.layers import lipschitz
from lowcurve.layers.batchnorm import LipschitzBatchNorm1d
from lowcurve.layers.softplus import CenteredSoftplus
from lowcurve.surgery import rules
from tests.fuzz.hunt import Found, drawn, judge
from tests.fuzz.oracles import ORACLES
from tests.fuzz.shrink import shrink

ENOUGH = 60  # networks that have the operation, within which each mistake must be found


def times(factor: float) -> Callable[[Any], Any]:
    """Return a change of a function: its result, or each part of it, is multiplied by `factor`."""

    def changed(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrong(*args: Any, **kwargs: Any) -> Any:
            right = function(*args, **kwargs)
            if isinstance(right, tuple):
                return tuple(None if part is None else part * factor for part in right)
            return right * factor

        return wrong

    return changed


def under_a_compiler(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Change a function where it is compiled, and nowhere else."""
    return lambda *args: function(*args) * (1.01 if torch.compiler.is_compiling() else 1.0)


def always(value: Any) -> Callable[[Any], Any]:
    """Put another value in the place of whatever was there."""
    return lambda _: value


def too_large(lanczos: Callable[..., Any]) -> Callable[..., Any]:
    """Return an iteration whose values are 5 % too large."""
    return lambda *args, **kwargs: replace(found := lanczos(*args, **kwargs), value=1.05 * found.value)


# Oracle -> an operation that shows the mistake, and where it is made: owner, name, what becomes of what is there.
MISTAKES: dict[str, tuple[str, Any, str, Callable[[Any], Any]]] = {
    "gradients": ("centered", softplus, "softplus_gradient", times(1.01)),
    "second derivatives": ("centered", softplus, "_second", times(1.01)),
    "fast second derivatives": ("batchnorm", norm, "_gradients", times(1.01)),
    "transforms": ("centered", softplus, "composite_softplus", times(1.01)),
    "limit": ("leaky", rules, "LeakyCenteredSoftplus", always(lambda slope, beta: CenteredSoftplus(beta))),
    "fold": ("lipschitz", LipschitzBatchNorm1d, "factor", times(1.1)),
    "compiled": ("centered", softplus, "composite_softplus", under_a_compiler),
    "curvature": ("linear", curvature, "lanczos", too_large),
    "norms": ("linear", operator_norm, "_dense_norm", times(0.99)),
    "bounds": ("linear", summary, "_rows", times(0.3)),
    "certificates": ("linear", certificate, "_executed", times(4.0)),
    "explanations": ("linear", explanation, "SLACK", always(0.05)),
    "attacks": ("linear", verify, "successes", lambda right: lambda *args: ~right(*args)),
}


# Mistakes in one layer, each with the oracle that must see it.
MORE: dict[str, tuple[str, Any, str, Callable[[Any], Any]]] = {
    "bounds": ("block", residual, "_constant", always(lambda *_: (0.5, 0))),
    "certificates": ("block", residual, "_constant", always(lambda *_: (0.1, 0))),
    "gradients": ("block2d", lipschitz, "overlaps", times(1.01)),
}


@pytest.mark.parametrize("oracle", [name for name, oracle in ORACLES.items() if oracle.networks])
def test_a_mistake_is_found(oracle: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _is_found(oracle, MISTAKES[oracle], monkeypatch)


@pytest.mark.parametrize("oracle", MORE)
def test_a_mistake_in_a_block_is_found(oracle: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _is_found(oracle, MORE[oracle], monkeypatch)


def _is_found(
    oracle: str, mistake: tuple[str, Any, str, Callable[[Any], Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    op, owner, name, change = mistake
    monkeypatch.setattr(owner, name, change(getattr(owner, name)))
    cases = (drawn(oracle, seed) for seed in count())
    fit = (case for case in cases if any(node["op"] == op for node in case.recipe["nodes"]))
    found = next((case for case in islice(fit, ENOUGH) if isinstance(judge(oracle, case), Found)), None)
    assert found is not None, "nobody noticed"
    monkeypatch.undo()
    assert judge(oracle, found) is None


def test_a_finding_is_shrunk_to_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(softplus, "softplus_gradient", times(1.01)(softplus.softplus_gradient))
    long = (f for s in count() if isinstance(f := judge("gradients", drawn("gradients", s)), Found))
    found = islice((f for f in long if len(f.case.recipe["nodes"]) > 3), 4)
    smallest = min(map(shrink, found), key=lambda f: len(f.case.recipe["nodes"]))
    assert len(smallest.case.recipe["nodes"]) == 1
    names: dict[str, Any] = {}
    exec(str(smallest), names)  # the reproduction is a program that runs by itself
    assert isinstance(names["model"], nn.Module)

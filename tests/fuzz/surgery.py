"""Oracles: is the converted network for β, γ → ∞ the original, its fold the same, compiled or not?"""

import copy

import torch
from torch import Tensor, nn

import lowcurve as lc
from lowcurve.layers.batchnorm import LipschitzBatchNorm1d, LipschitzBatchNorm2d
from lowcurve.layers.spectral import SpectralNorm
from tests.fuzz.build import Case, Unfit
from tests.fuzz.findings import Finding, Values, compare, noise
from tests.fuzz.gradients import derivatives
from tests.fuzz.reference import plain

_LARGE = 1e30
_STEPS = 3  # of training; the second one meets statistics that the first has moved


def limit(case: Case) -> None:
    """With β and γ as good as infinite, and where every factor is made up for, conversion changes nothing."""
    spectral = case.recipe["spectral"]
    model, report = lc.convert(case.model(), case.x, init_beta=_LARGE, init_gamma=_LARGE, spectral=spectral)
    if report.factors() or any(change.note.startswith("tends to ReLU") for change in report.replaced):
        raise Unfit("another function even at infinite β and γ")
    training = case.recipe["training"] and not spectral  # a batch norm makes up for σ in eval mode
    original = case.model().train(training)
    exact, error = noise(
        lambda x: _logits(copy.deepcopy(original).double(), x), lambda x: _logits(copy.deepcopy(original), x), case.x
    )
    compare(_logits(model.train(training), case.x), exact, error, case.x.dtype, "converted at infinite β and γ")


def fold(case: Case) -> None:
    """The fold has the converted network's eval-mode logits and gradients in x, and no class of lowcurve."""
    model = case.subject()
    folded = lc.fold(model)
    strangers = {type(module).__qualname__ for module in folded.modules() if "lowcurve" in type(module).__module__}
    if strangers:
        raise Finding(f"the fold has {strangers}")
    truth = plain(model.eval(), torch.float64)
    exact, error = noise(lambda x: _in_x(truth, x), lambda x: _in_x(plain(model, x.dtype), x), case.x)
    compare(_in_x(model, case.x), exact, error, case.x.dtype, "converted")
    compare(_in_x(folded, case.x), exact, error, case.x.dtype, "folded")


def compiled(case: Case) -> None:
    """Steps of training, compiled, have the values and gradients of uncompiled ones."""
    _compiled_by(case, "aot_eager")


def inductor(case: Case) -> None:
    """The same with code that is generated, which takes long."""
    _compiled_by(case, "inductor")


def _compiled_by(case: Case, backend: str) -> None:
    torch._dynamo.reset()
    model = case.subject()
    eager, fast = _copied(model), torch.compile(_copied(model), backend=backend)
    for ordinary in (plain(model, case.x.dtype), _with_torch_norms(_copied(model))):
        try:
            derivatives(torch.compile(ordinary, backend=backend), case.x)
        except Exception as error:  # the compiler fails by itself
            raise Unfit(str(error)) from error
    for step in range(_STEPS):
        truth = lambda x: derivatives(plain(eager, torch.float64), x)  # noqa: E731
        exact, error = noise(truth, lambda x: derivatives(plain(eager, x.dtype), x), case.x)
        found = {name.removeprefix("_orig_mod."): value for name, value in derivatives(fast, case.x).items()}
        compare(derivatives(eager, case.x), exact, error, case.x.dtype, f"eager, step {step}")
        compare(found, exact, error, case.x.dtype, f"compiled, step {step}")


def _with_torch_norms(model: nn.Module) -> nn.Module:
    """Put PyTorch's own batch norms in the place of γ-Lipschitz ones."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, LipschitzBatchNorm1d | LipschitzBatchNorm2d):
                setattr(module, name, child.norm)
    return model


def _copied(model: nn.Module) -> nn.Module:
    """Copy, with singular vectors that stay where they are, so that the steps of both can be compared."""
    twin = copy.deepcopy(model)
    for module in twin.modules():
        if isinstance(module, SpectralNorm):
            module.eval()
    return twin


@torch.no_grad()
def _logits(model: nn.Module, x: Tensor) -> Values:
    return {"logits": model(x.clone(memory_format=torch.preserve_format))}


def _in_x(model: nn.Module, x: Tensor) -> Values:
    found = derivatives(model, x)
    return {name: found[name] for name in ("logits", "x")}

"""How does any classifier become a low-curvature one? Activations, batch norms and linear layers are replaced.

ReLU-like activations become `CenteredSoftplus`, each site with its own β; batch norms `LipschitzBatchNorm`; Linear
and convolution layers get unit operator norm at the input size of the example. Weights are kept. What each type
becomes is in `rules`; `docs/conversion.md` explains it.
"""

from collections.abc import Collection, Container
from typing import Any

import torch
from torch import nn

from lowcurve import checks
from lowcurve.compat import BATCH_NORMS
from lowcurve.errors import UserError
from lowcurve.layers.together import together
from lowcurve.layers.traits import smooth
from lowcurve.surgery.pretrained import guard
from lowcurve.surgery.probe import probe
from lowcurve.surgery.record import remember
from lowcurve.surgery.refuse import is_linear_layer, refuse_overwritten_outputs, refuse_unconvertible, refuse_wrapped
from lowcurve.surgery.replace import (
    Surgery,
    lipschitz_parts,
    normalize_linear_layers,
    replace_activations,
    replace_batchnorms,
)
from lowcurve.surgery.report import Change, ConversionReport, where
from lowcurve.surgery.rewrite import spelled
from lowcurve.surgery.rules import LEFT_FUNCTIONS, activation_rule, reason_left
from lowcurve.surgery.simplify import simplify
from lowcurve.surgery.trace import activation_functions, separate_activations
from lowcurve.surgery.untouched import attention_parts, kept_activations, last_layers, skipped

SMOOTH_ACTIVATIONS = ("keep", "learn")  # besides True: replace them as all others


@torch.inference_mode(False)  # or its copy of the weights could never be trained
def convert(
    model: nn.Module,
    example_input: Any,
    *,
    activation: bool | str = True,
    batchnorm: bool = True,
    spectral: bool = True,
    init_beta: float = 5.0,
    init_gamma: float = 10.0,
    skip: Collection[str] = (),
    last_layer: str = "free",
) -> tuple[nn.Module, ConversionReport]:
    """Return a low-curvature copy of `model`, with its weights, and a report; `model` itself is not changed.

    `example_input` is a batch as the model takes it (any values, the true size; one sample is enough), a tuple of
    several arguments or a dict of keyword arguments. The switches choose what is replaced. Activations that are smooth
    already (GELU, SiLU, Mish) become softplus too, unless `activation` is "keep", which leaves them as they are, or
    "learn", which gives them a learned β and their own shape; rectifiers are replaced all the same. `init_beta` and
    `init_gamma` are β and γ to start from; modules named in `skip`, and what is inside them, are left as they are. The
    linear layer that makes the logits keeps its scale, which normalized curvature does not see and accuracy needs;
    `last_layer="unit"` gives it unit norm too, as in the paper. A model that could only be converted in part is refused
    by a `UserError` that names the module and the remedy.

    >>> import torch
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> low, report = convert(net, torch.zeros(1, 4))
    >>> report.summary()
    '1 Linear -> spectral norm, 1 ReLU -> CenteredSoftplus; 1 left'
    """
    refuse_wrapped(model)
    checks.usable(model)
    checks.flag(batchnorm=batchnorm, spectral=spectral)
    _check_activation(activation)
    checks.number(above=0, init_beta=init_beta, init_gamma=init_gamma)
    before, model = model, checks.copied(model)
    run = probe(model, example_input)
    kept = kept_activations(model) if activation == "keep" else {}
    untouched = {**kept, **attention_parts(model, run), **skipped(model, skip)}
    if simplify(model, untouched):
        run = probe(model, example_input)
    refuse_unconvertible(model, run, untouched, activation=bool(activation), batchnorm=batchnorm, spectral=spectral)
    origins: dict[nn.Module, str] = {}
    if activation:
        run, origins = separate_activations(model, example_input, run, untouched)
    if activation == "keep":  # also those that were functions
        untouched |= kept_activations(model)
    surgery = Surgery(model, run, untouched)
    _note_what_stays(surgery)
    if spectral:
        normalize_linear_layers(surgery, last_layers(run, last_layer))
    if batchnorm:
        replace_batchnorms(surgery, init_gamma)
    if activation:
        replace_activations(surgery, origins, init_beta, learn=activation == "learn")
        _verify(surgery.model, example_input, untouched)
        refuse_overwritten_outputs(surgery.model, example_input)
    together(surgery.model)
    options = {"activation": activation, "batchnorm": batchnorm, "spectral": spectral, "skip": list(skip)}
    options |= {"last_layer": last_layer}
    remember(before, surgery.model, example_input, options)
    if surgery.replaced:
        guard(surgery.model)
    return surgery.model, _report(surgery)


def _check_activation(activation: object) -> None:
    if not isinstance(activation, bool) and activation not in SMOOTH_ACTIVATIONS:
        raise UserError(
            f"expected activation as True, False, 'keep' or 'learn', got {checks.shown(activation)}; the last two are "
            "for what is smooth already, such as GELU"
        )


def _note_what_stays(surgery: Surgery) -> None:
    """Report what is untouched, once per block; what has a reason to stay; and what the run did not reach."""
    covered = lipschitz_parts(surgery.model)
    for name, module in surgery.model.named_modules():
        kind, convertible = type(module).__name__, activation_rule(module) or is_linear_layer(module)
        if module in covered:
            continue
        if module in surgery.untouched:
            covered.update(module.modules())
            surgery.left.append(Change(name, kind, "left", surgery.untouched[module]))
            continue
        if not surgery.run.reached(module):
            if convertible or isinstance(module, BATCH_NORMS):
                surgery.left.append(Change(name, kind, "left", "not reached by the example input"))
            continue
        reason = reason_left(module)
        if reason is not None:
            surgery.left.append(Change(name, kind, "left", reason))
        elif not convertible and not smooth(module):
            called = (f for f in surgery.run.records[module].functions if f in LEFT_FUNCTIONS)
            surgery.left += [Change(name, f"{spelled(f)} in {kind}", "left", LEFT_FUNCTIONS[f]) for f in called]


def replace_rectifiers(model: nn.Module, example_input: Any, beta: float) -> nn.Module:
    """Put softplus of this β in place of what it tends to (ReLU, LeakyReLU, clips) and of nothing else, in place."""
    refuse_wrapped(model)
    run, origins = separate_activations(model, example_input, probe(model, example_input), ())
    surgery = Surgery(model, run, {})
    replace_activations(surgery, origins, beta, same_limit=True)
    return surgery.model


def _verify(model: nn.Module, example_input: Any, untouched: Container[nn.Module]) -> None:
    """Run the result; no activation that has a rule may still be called where it should have been replaced."""
    for module, record in probe(model, example_input).records.items():
        if module in untouched or smooth(module):
            continue
        rest = [spelled(function) for function, _ in activation_functions(record)]
        if rest or activation_rule(module) is not None:
            raise UserError(
                f"this model could only be converted in part: {where(module, model)} still calls "
                f"{', '.join(rest) or 'its activation'}, through a reference that is no registered module; register it"
            )


def _report(surgery: Surgery) -> ConversionReport:
    """Order the notes as the model orders its modules."""
    position = {name: i for i, (name, _) in enumerate(surgery.model.named_modules(remove_duplicate=False))}
    ordered = sorted(surgery.replaced, key=lambda change: position.get(change.name, 0))
    return ConversionReport(tuple(ordered), tuple(surgery.left))

"""How does any classifier become a low-curvature one? Activations, batch norms and linear layers are replaced.

ReLU-like activations become `CenteredSoftplus`, each site with its own β; batch norms `LipschitzBatchNorm`; Linear
and convolution layers get unit operator norm at the input size of the example. Weights are kept. What each type
becomes is in `rules`; `docs/conversion.md` explains it.
"""

from collections.abc import Collection, Container, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from lowcurve import checks
from lowcurve.compat import BATCH_NORMS, BatchNorm
from lowcurve.errors import UserError
from lowcurve.layers.batchnorm import LipschitzBatchNorm1d, LipschitzBatchNorm2d
from lowcurve.layers.spectral import original, spectral_norm, spectral_of
from lowcurve.layers.traits import smooth
from lowcurve.surgery.hooks import carry_hooks
from lowcurve.surgery.probe import Probe, probe, tensors
from lowcurve.surgery.record import remember
from lowcurve.surgery.refuse import (
    input_size,
    is_linear_layer,
    refuse_overwritten,
    refuse_unconvertible,
    refuse_wrapped,
)
from lowcurve.surgery.report import Change, ConversionReport, where
from lowcurve.surgery.rewrite import spelled
from lowcurve.surgery.rules import LEFT_FUNCTIONS, activation_rule, reason_left
from lowcurve.surgery.trace import activation_functions, separate_activations, slots
from lowcurve.surgery.untouched import attention_parts, skipped


@dataclass
class _Surgery:
    """The model under the knife, the run that says what it does, and the notes so far."""

    model: nn.Module
    run: Probe
    untouched: Mapping[nn.Module, str]  # module -> why it is left
    replaced: list[Change] = field(default_factory=list)
    left: list[Change] = field(default_factory=list)

    def sites(self) -> Iterator[tuple[str, nn.Module, list[tuple[nn.Module, str]]]]:
        """Yield (name, module, its slots) of every module that the run reached and that may be touched."""
        places, done = slots(self.model), _lipschitz_parts(self.model)
        for name, module in list(self.model.named_modules()):
            if self.run.reached(module) and module not in self.untouched and module not in done:
                yield name, module, places.get(module, [])

    def put(self, old: nn.Module, new: nn.Module, places: list[tuple[nn.Module, str]]) -> None:
        """Register `new` where `old` was, in its mode and with its hooks."""
        new.train(old.training)
        carry_hooks(old, new)
        for owner, slot in places:
            owner.add_module(slot, new)
        if old is self.model:
            self.model = new


def convert(
    model: nn.Module,
    example_input: Any,
    *,
    activation: bool = True,
    batchnorm: bool = True,
    spectral: bool = True,
    init_beta: float = 5.0,
    init_gamma: float = 10.0,
    skip: Collection[str] = (),
) -> tuple[nn.Module, ConversionReport]:
    """Return a low-curvature copy of `model`, with its weights, and a report; `model` itself is not changed.

    `example_input` is a batch as the model takes it (any values, the true size; one sample is enough), a tuple of
    several arguments or a dict of keyword arguments. The switches choose what is replaced; `init_beta` and
    `init_gamma` are β and γ to start from; modules named in `skip`, and what is inside them, are left as they are. A
    model that could only be converted in part is refused by a `UserError` that names the module and the remedy.

    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> low, report = convert(net, torch.zeros(1, 4))
    >>> report.summary()
    '2 Linear -> spectral norm, 1 ReLU -> CenteredSoftplus; 0 left'
    """
    refuse_wrapped(model)
    checks.usable(model)
    checks.flag(activation=activation, batchnorm=batchnorm, spectral=spectral)
    checks.number(above=0, init_beta=init_beta, init_gamma=init_gamma)
    before, model = model, checks.copied(model)
    run = probe(model, example_input)
    untouched = {**attention_parts(model, run), **skipped(model, skip)}
    refuse_unconvertible(model, run, untouched, activation=activation, batchnorm=batchnorm, spectral=spectral)
    origins: dict[nn.Module, str] = {}
    if activation:
        run, origins = separate_activations(model, example_input, run, untouched)
    surgery = _Surgery(model, run, untouched)
    _note_what_stays(surgery)
    if spectral:
        _normalize_linear_layers(surgery)
    if batchnorm:
        _replace_batchnorms(surgery, init_gamma)
    if activation:
        _replace_activations(surgery, origins, init_beta)
        _verify(surgery.model, example_input, untouched)
        refuse_overwritten(surgery.model, example_input)
    options = {"activation": activation, "batchnorm": batchnorm, "spectral": spectral, "skip": list(skip)}
    remember(before, surgery.model, example_input, options)
    return surgery.model, _report(surgery)


def _lipschitz_parts(model: nn.Module) -> set[nn.Module]:
    """Return what is inside the Lipschitz batch norms of a model that was converted before."""
    norms = (module for module in model.modules() if isinstance(module, LipschitzBatchNorm1d | LipschitzBatchNorm2d))
    return {part for norm in norms for part in norm.children()}


def _note_what_stays(surgery: _Surgery) -> None:
    """Report what is untouched, once per block; what has a reason to stay; and what the run did not reach."""
    covered = _lipschitz_parts(surgery.model)
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
    surgery = _Surgery(model, run, {})
    _replace_activations(surgery, origins, beta, same_limit=True)
    return surgery.model


def _replace_activations(
    surgery: _Surgery, origins: dict[nn.Module, str], init_beta: float, same_limit: bool = False
) -> None:
    """Give each site its own replacement: a module that is registered at several places becomes several.

    With `same_limit`, only activations that the replacement tends to for large β are replaced.
    """
    known = (*surgery.model.parameters(), *tensors(surgery.run.output))  # a model may have no parameters
    like = next((tensor for tensor in known if tensor.is_floating_point()), torch.zeros(()))
    for _, module, places in surgery.sites():
        rule = activation_rule(module)
        if rule is None or (same_limit and rule.note):
            continue
        names = {owner: name for name, owner in surgery.model.named_modules()}
        was = origins.get(module, type(module).__name__)
        for site in [[place] for place in places] or [[]]:  # the model itself has no place
            new = rule.build(module, init_beta).to(like.device, like.dtype)
            surgery.put(module, new, site)
            name = "".join(f"{names[owner]}.{slot}".lstrip(".") for owner, slot in site)
            surgery.replaced.append(Change(name, was, type(new).__name__, rule.note))
    for module in surgery.model.modules():
        if isinstance(module, nn.TransformerEncoderLayer):
            module.activation_relu_or_gelu = 0  # its fused inference path would compute the old activation


def _normalize_linear_layers(surgery: _Surgery) -> None:
    """Divide each weight by its operator norm σ; a batch norm that alone reads the layer makes up for it."""
    for name, module, _ in surgery.sites():
        if not is_linear_layer(module) or spectral_of(module) is not None:
            continue
        kind = type(module).__name__
        spectral_norm(module, input_size(module, surgery.run))
        normalization = spectral_of(module)
        assert normalization is not None
        with torch.no_grad():
            sigma = float(normalization.sigma(original(module)))
        if not bool(original(module).any()):
            surgery.replaced.append(Change(name, kind, "spectral norm", "the weight is zero"))
            continue
        _scale_bias(module, 1 / sigma)
        reader = surgery.run.reader(module)
        norm = reader.norm if isinstance(reader, LipschitzBatchNorm1d | LipschitzBatchNorm2d) else reader
        if isinstance(norm, BATCH_NORMS) and norm not in surgery.untouched:
            before = _clipping(reader)
            rescale_statistics(norm, sigma)
            note, factor = f"σ = {sigma:.4g}, made up for by the batch norm that follows", _clipping(reader) / before
        else:
            note, factor = f"output divided by σ = {sigma:.4g}", 1 / sigma
        surgery.replaced.append(Change(name, kind, "spectral norm", note, factor))


@torch.no_grad()
def _clipping(norm: Any) -> float:
    """Return what a Lipschitz batch norm multiplies its result by, 1 for any other; it changes with its statistics."""
    return float(norm.factor()) if isinstance(norm, LipschitzBatchNorm1d | LipschitzBatchNorm2d) else 1.0


@torch.no_grad()
def _scale_bias(module: nn.Module, factor: float) -> None:
    if isinstance(module.bias, nn.Parameter):
        module.bias.mul_(factor)


@torch.no_grad()
def rescale_statistics(norm: BatchNorm, sigma: float) -> None:
    """Make a batch norm give on x/σ what it gave on x, in eval mode.

    mean' = mean / σ and var' + ε = (var + ε) / σ². Where that would make var' negative, it is 0 and the affine
    weight takes the rest: w' = w σ √(var' + ε) / √(var + ε), which is w everywhere else.
    """
    assert norm.running_mean is not None and norm.running_var is not None
    norm.running_mean.div_(sigma)
    total = norm.running_var + norm.eps
    norm.running_var.copy_((total / sigma**2 - norm.eps).clamp_min(0))
    if norm.affine:
        norm.weight.mul_(sigma * ((norm.running_var + norm.eps) / total).sqrt())


def _replace_batchnorms(surgery: _Surgery, init_gamma: float) -> None:
    """Put each batch norm, with its weights and statistics, inside a Lipschitz one."""
    for name, module, places in surgery.sites():
        if not isinstance(module, BATCH_NORMS):
            continue
        flat = isinstance(module, nn.BatchNorm1d)
        new = (LipschitzBatchNorm1d if flat else LipschitzBatchNorm2d)(module.num_features, init_gamma)
        new.to(module.running_var.device, module.running_var.dtype)  # type: ignore[union-attr]
        new.norm = module  # type: ignore[assignment]  # SyncBatchNorm too
        surgery.put(module, new, places)
        with torch.no_grad():
            factor, steepest = float(new.factor()), float(new.gamma / new.factor())
        note = f"output × {factor:.4g}: its steepest channel had slope {steepest:.4g}" if factor < 1 else ""
        surgery.replaced.append(Change(name, type(module).__name__, type(new).__name__, note, factor))


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


def _report(surgery: _Surgery) -> ConversionReport:
    """Order the notes as the model orders its modules."""
    position = {name: i for i, (name, _) in enumerate(surgery.model.named_modules(remove_duplicate=False))}
    ordered = sorted(surgery.replaced, key=lambda change: position.get(change.name, 0))
    return ConversionReport(tuple(ordered), tuple(surgery.left))

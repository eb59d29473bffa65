"""Which modules does surgery leave alone? Those that the caller names, every part of an attention, the last layer."""

from collections.abc import Collection, Iterable

from torch import nn

from lowcurve import checks
from lowcurve.errors import UserError
from lowcurve.surgery.probe import Probe
from lowcurve.surgery.report import where
from lowcurve.surgery.rules import activation_rule, smooth_rule
from lowcurve.surgery.trace import slots

LAST_LAYERS = ("free", "unit")


def skipped(model: nn.Module, skip: Collection[str]) -> dict[nn.Module, str]:
    """Return the modules of these names, and what is inside them."""
    if isinstance(skip, str):
        raise UserError(f"skip takes several names, got the text {skip!r}; pass ({skip!r},)")
    skip = list(skip) if isinstance(skip, Iterable) else [skip]
    if not all(isinstance(name, str) for name in skip):
        raise UserError(f"expected skip as names of modules, such as ('fc',), got {checks.shown(skip)}")
    named = {name: module for name, module in model.named_modules(remove_duplicate=False) if name}
    chosen = {name: named.get(name) for name in skip}
    parts = {part for module in chosen.values() if module is not None for part in module.modules()}
    for name, module in chosen.items():
        if module is None:
            raise UserError(
                f"skip names a module that the model does not have, {name!r}; its last ones are "
                f"{', '.join(map(repr, list(named)[-3:]))}, and model.named_modules() has all"
            )
        if activation_rule(module) is not None:
            raise UserError(
                f"skip names an activation, {name!r}, which its caller may use twice; skip the module around it"
            )
    for part, places in slots(model).items():
        if part in parts and part not in chosen.values() and any(owner not in parts for owner, _ in places):
            raise UserError(f"{where(part, model)} is inside and outside of what skip names; give each place its own")
    return dict.fromkeys(parts, "skipped, as asked")


def kept_activations(model: nn.Module) -> dict[nn.Module, str]:
    """Return the activations that are smooth already, where these keep their shape."""
    return {module: "smooth already, kept as asked" for module in model.modules() if smooth_rule(module) is not None}


def last_layers(run: Probe, last_layer: str) -> dict[nn.Module, str]:
    """Return the layers that spectral norms leave free: the last ones, unless they too shall have unit norm."""
    checks.choice(LAST_LAYERS, last_layer=last_layer)
    return dict.fromkeys(run.last if last_layer == "free" else (), "last layer: its scale is that of the logits")


def attention_parts(model: nn.Module, run: Probe) -> dict[nn.Module, str]:
    """Return every module that is part of an attention: what computes it, and what is around it by that name."""
    parts: dict[nn.Module, str] = {}
    attending = {module for module, record in run.records.items() if record.attends()}
    for module in model.modules():
        named = type(module).__name__.endswith("Attention") and not attending.isdisjoint(module.modules())
        if module in attending or (named and module is not model):
            parts.update(dict.fromkeys(module.modules(), "attention is not converted"))
    return parts

"""How are activations, linear layers and batch norms of a model replaced, with what notes?"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from lowcurve.compat import BATCH_NORMS, BatchNorm
from lowcurve.layers.batchnorm import LipschitzBatchNorm1d, LipschitzBatchNorm2d
from lowcurve.layers.normalized import original, spectral_norm, spectral_of
from lowcurve.surgery.hooks import carry_hooks
from lowcurve.surgery.nested import tensors
from lowcurve.surgery.probe import Probe
from lowcurve.surgery.refuse import input_size, is_linear_layer
from lowcurve.surgery.report import Change
from lowcurve.surgery.rules import activation_rule, smooth_rule
from lowcurve.surgery.trace import slots

_LIPSCHITZ = (LipschitzBatchNorm1d, LipschitzBatchNorm2d)


@dataclass
class Surgery:
    """The model under the knife, the run that says what it does, and the notes so far."""

    model: nn.Module
    run: Probe
    untouched: Mapping[nn.Module, str]  # module -> why it is left
    replaced: list[Change] = field(default_factory=list)
    left: list[Change] = field(default_factory=list)

    def sites(self) -> Iterator[tuple[str, nn.Module, list[tuple[nn.Module, str]]]]:
        """Yield (name, module, its slots) of every module that the run reached and that may be touched."""
        places, done = slots(self.model), lipschitz_parts(self.model)
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


def replace_activations(
    surgery: Surgery, origins: dict[nn.Module, str], init_beta: float, same_limit: bool = False, learn: bool = False
) -> None:
    """Give each site its own replacement: a module that is registered at several places becomes several.

    With `same_limit`, only activations that the replacement tends to for large β are replaced. With `learn`, those that
    are smooth already keep their shape and get a β.
    """
    known = (*surgery.model.parameters(), *tensors(surgery.run.output))  # a model may have no parameters
    like = next((tensor for tensor in known if tensor.is_floating_point()), torch.zeros(()))
    for _, module, places in surgery.sites():
        rule = (smooth_rule(module) if learn else None) or activation_rule(module)
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


def normalize_linear_layers(surgery: Surgery, free: Mapping[nn.Module, str]) -> None:
    """Divide each weight by its operator norm σ; a batch norm that alone reads the layer makes up for it."""
    for name, module, _ in surgery.sites():
        if not is_linear_layer(module) or spectral_of(module) is not None:
            continue
        kind = type(module).__name__
        if module in free:
            surgery.left.append(Change(name, kind, "left", free[module]))
            continue
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
        norm = reader.norm if isinstance(reader, _LIPSCHITZ) else reader
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
    return float(norm.factor()) if isinstance(norm, _LIPSCHITZ) else 1.0


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


def replace_batchnorms(surgery: Surgery, init_gamma: float) -> None:
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


def lipschitz_parts(model: nn.Module) -> set[nn.Module]:
    """Return what is inside the Lipschitz batch norms of a model that was converted before."""
    norms = (module for module in model.modules() if isinstance(module, _LIPSCHITZ))
    return {part for norm in norms for part in norm.children()}

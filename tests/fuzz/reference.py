"""What should the layers of lowcurve compute? The definitions in plain PyTorch, slow, simple and independent of them.

`plain` puts them in the place of a model's layers, under the same parameter names, so that every derivative of one
model can be held against that of the other.
"""

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lowcurve.layers.batchnorm import LipschitzBatchNorm1d, LipschitzBatchNorm2d
from lowcurve.layers.chain import Chain
from lowcurve.layers.lipschitz import LipschitzResidual, LipschitzResidual2d
from lowcurve.layers.rectifiers import LeakyCenteredSoftplus, SmoothClip
from lowcurve.layers.softplus import CenteredSoftplus
from lowcurve.layers.spectral import SpectralNorm


class PlainSoftplus(nn.Module):
    """s₀(x; β) = (log(1 + e^{βx}) - log 2) / β."""

    def __init__(self, layer: CenteredSoftplus) -> None:
        super().__init__()
        self.log_beta = layer.log_beta

    def forward(self, x: Tensor) -> Tensor:
        scaled = self.log_beta.exp() * x
        return ((torch.logaddexp(scaled, torch.zeros_like(scaled)) - math.log(2)) / self.log_beta.exp()).to(x.dtype)


class PlainLeaky(nn.Module):
    """a x + (1 - a) s₀(x; β)."""

    def __init__(self, layer: LeakyCenteredSoftplus) -> None:
        super().__init__()
        self.slope, self.softplus = layer.negative_slope, PlainSoftplus(layer.softplus)

    def forward(self, x: Tensor) -> Tensor:
        return self.slope * x + (1 - self.slope) * self.softplus(x)


class PlainClip(nn.Module):
    """low + s₀(x - low; β) - s₀(x - high; β)."""

    def __init__(self, layer: SmoothClip) -> None:
        super().__init__()
        self.low, self.high, self.softplus = layer.low, layer.high, PlainSoftplus(layer.softplus)

    def forward(self, x: Tensor) -> Tensor:
        return self.low + self.softplus(x - self.low) - self.softplus(x - self.high)


class PlainBatchNorm(nn.Module):
    """min(1, γ / max_c |w_c| / √(var_c + ε)) BN(x), from means and variances, over the running ones of before."""

    def __init__(self, layer: LipschitzBatchNorm1d | LipschitzBatchNorm2d) -> None:
        super().__init__()
        self.norm, self.log_gamma = layer.norm, layer.log_gamma

    def forward(self, x: Tensor) -> Tensor:
        norm = self.norm
        weight = torch.ones_like(norm.running_var) if norm.weight is None else norm.weight  # type: ignore[arg-type]
        bias = torch.zeros_like(weight) if norm.bias is None else norm.bias
        steepest = (weight.abs() / (norm.running_var + norm.eps).sqrt()).max()  # type: ignore[operator]
        gamma = self.log_gamma.exp()
        factor = gamma / steepest if gamma < steepest else torch.ones_like(gamma)
        wide = torch.promote_types(x.dtype, torch.float32)
        hat = _normalized(x.to(wide), norm, self.training)
        return (hat * _channels(weight * factor, x) + _channels(bias * factor, x)).to(x.dtype)


def _normalized(x: Tensor, norm: Any, training: bool) -> Tensor:
    """(x - mean) / √(var + ε); in training by the batch, which moves the running statistics."""
    if not training:
        return (x - _channels(norm.running_mean, x)) / (_channels(norm.running_var, x) + norm.eps).sqrt()
    others = [dim for dim in range(x.dim()) if dim != 1]
    mean = x.mean(others, keepdim=True)
    variance = (x - mean).square().mean(others, keepdim=True)
    count = x.numel() / x.shape[1]
    norm.num_batches_tracked += 1
    share = 1 / float(norm.num_batches_tracked) if norm.momentum is None else norm.momentum
    with torch.no_grad():
        norm.running_mean.lerp_(mean.flatten().to(norm.running_mean.dtype), share)
        norm.running_var.lerp_((variance * count / (count - 1)).flatten().to(norm.running_var.dtype), share)
    if x.dtype != torch.float64:  # with the roundings of PyTorch's own, whose saved mean is rounded
        return F.batch_norm(x, None, None, training=True, eps=norm.eps)
    return (x - mean) / (variance + norm.eps).sqrt()


def _channels(values: Tensor, x: Tensor) -> Tensor:
    return values.view(1, -1, *(1,) * (x.dim() - 2))


class PlainResidual(nn.Module):
    """x − 2 W T⁻¹ s(Wᵀx + b), T_i = Σ_j |WᵀW|_ij q_j / q_i, a shift of the kernels after the other."""

    def __init__(self, layer: LipschitzResidual | LipschitzResidual2d) -> None:
        super().__init__()
        self.weight, self.bias, self.log_q, self.activation = layer.weight, layer.bias, layer.log_q, layer.activation
        self.dense = isinstance(layer, LipschitzResidual)
        self.circular = not self.dense and layer.padding_mode == "circular"

    def forward(self, x: Tensor) -> Tensor:
        if self.dense:
            inner = self.activation(x @ self.weight.T + self.bias)
            return x - 2 * (inner / self._sums(self.weight[..., None, None])) @ self.weight
        padding = self.weight.shape[-1] // 2
        wide = F.pad(x, (padding,) * 4, mode="circular" if self.circular else "constant")
        inner = self.activation(F.conv2d(wide, self.weight, self.bias))
        inner = 2 * inner / self._sums(self.weight).view(-1, 1, 1)
        if not self.circular:
            return x - F.conv_transpose2d(inner, self.weight, padding=padding)
        wide = F.pad(inner, (padding,) * 4, mode="circular")
        return x - F.conv_transpose2d(wide, self.weight, padding=2 * padding)

    def _sums(self, weight: Tensor) -> Tensor:
        kernel, q = weight.shape[-1], self.log_q.exp()
        total = 0.0
        for row in range(1 - kernel, kernel):
            for column in range(1 - kernel, kernel):
                first = weight[:, :, max(row, 0) : kernel + min(row, 0), max(column, 0) : kernel + min(column, 0)]
                other = weight[:, :, max(-row, 0) : kernel + min(-row, 0), max(-column, 0) : kernel + min(-column, 0)]
                total = total + torch.einsum("ianm,janm->ij", first, other).abs()
        return (total * q / q[:, None]).sum(1).clamp_min(1e-6)


class PlainSpectral(nn.Module):
    """W / ⟨u, W v⟩, by one application of the layer to v."""

    def __init__(self, layer: nn.Module, spectral: SpectralNorm) -> None:
        super().__init__()
        self.apply_to = _application(layer)
        self.register_buffer("left", spectral.left.clone())
        self.register_buffer("right", spectral.right.clone())

    def forward(self, weight: Tensor) -> Tensor:
        sigma = (self.left * self.apply_to(self.right, weight)).sum()
        return weight / sigma.clamp_min(torch.finfo(sigma.dtype).tiny)


def _application(layer: Any) -> Callable[[Tensor, Tensor], Tensor]:
    """Return (v, W) -> W v as the layer applies it, without its bias."""
    if isinstance(layer, nn.Linear):
        return F.linear
    settings = (layer.stride, layer.dilation, layer.groups)
    pads, mode = layer._reversed_padding_repeated_twice, layer.padding_mode
    convolution = F.conv1d if isinstance(layer, nn.Conv1d) else F.conv2d

    def applied(v: Tensor, weight: Tensor) -> Tensor:
        stride, dilation, groups = settings
        v = F.pad(v, pads, mode="constant" if mode == "zeros" else mode)
        return convolution(v, weight, None, stride, 0, dilation, groups)

    return applied


class PlainHardsigmoid(nn.Module):
    """min(max(x + 3, 0), 6) / 6; PyTorch's own backward multiplies by a sixth of float32."""

    def __init__(self, layer: nn.Hardsigmoid) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        return (x + 3).clamp(0, 6) / 6


PLAIN: dict[type, Callable[[Any], nn.Module]] = {
    CenteredSoftplus: PlainSoftplus,
    LeakyCenteredSoftplus: PlainLeaky,
    SmoothClip: PlainClip,
    LipschitzBatchNorm1d: PlainBatchNorm,
    LipschitzBatchNorm2d: PlainBatchNorm,
    LipschitzResidual: PlainResidual,
    LipschitzResidual2d: PlainResidual,
    nn.Hardsigmoid: PlainHardsigmoid,
    Chain: lambda chain: nn.Sequential(*chain),
}


def plain(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Return a copy of `model` in that precision with every layer of lowcurve, and what PyTorch rounds, written out."""
    twin = copy.deepcopy(model)
    modes = {name: module.training for name, module in twin.named_modules()}
    twin = _written_out(twin, {})
    for name, module in twin.named_modules():
        module.training = modes.get(name, module.training)
    return twin.to(dtype)


def _written_out(module: nn.Module, done: dict[nn.Module, nn.Module]) -> nn.Module:
    if module in done:
        return done[module]
    for name, child in list(module._modules.items()):
        if child is not None and not isinstance(child, SpectralNorm):
            module._modules[name] = _written_out(child, done)
    links: Any = getattr(module, "parametrizations", {})
    for link in links.values():
        for place, spectral in enumerate(link):
            if isinstance(spectral, SpectralNorm):
                link[place] = PlainSpectral(module, spectral)
    for key, hook in list(module._forward_pre_hooks.items()):
        if getattr(hook, "__module__", "").startswith("lowcurve."):
            del module._forward_pre_hooks[key]
    done[module] = _with_hooks(module, PLAIN[type(module)](module)) if type(module) in PLAIN else module
    return done[module]


def _with_hooks(old: nn.Module, new: nn.Module) -> nn.Module:
    new.training = old.training
    new._forward_hooks, new._forward_pre_hooks = old._forward_hooks, old._forward_pre_hooks
    return new

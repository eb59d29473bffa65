r"""How γ-Lipschitz batch norms scale their weights, for many layers in plain PyTorch, and the gradient.

With gains (variance_c + ε)^{-1/2}, ‖BN‖ = max_c |w_c| gain_c and the factor f = min(1, γ / ‖BN‖), weights and
biases become f w and f b; w = 1 where a layer has none. For gradients g and g′ of these let F = ⟨g, w⟩ + ⟨g′, b⟩ where
f < 1, else 0. The gradients are f g + F ∂f/∂w in w, where the steepest channels share ∂f/∂w = -f / ‖BN‖ ∂‖BN‖/∂w
equally, f g′ in b, and F f in log γ.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from lowcurve.kernels.arguments import OptionalTensors
from lowcurve.kernels.engine import bounded_exp


def scales(
    variances: Sequence[Tensor],
    weights: OptionalTensors,
    biases: OptionalTensors,
    log_gammas: Sequence[Tensor],
    eps: Sequence[float],
) -> tuple[list[Tensor], list[Tensor], Tensor, Tensor]:
    """Return all f w; all f b, of layers that have one; all gains in one vector; and every f."""
    gains = [(variance + e).rsqrt() for variance, e in zip(variances, eps, strict=True)]
    given = list(zip(gains, weights, biases, map(bounded_exp, log_gammas), strict=True))
    factors = [factor(gamma, steepest(gain, weight)) for gain, weight, _, gamma in given]
    scaled = [scaled_weight(gain, weight, f) for (gain, weight, _, _), f in zip(given, factors, strict=True)]
    shifted = [bias * f for bias, f in zip(biases, factors, strict=True) if bias is not None]
    return scaled, shifted, torch.cat(gains), torch.cat(factors)


def scales_gradient(
    grads: Sequence[Tensor],
    bias_grads: Sequence[Tensor],
    weights: OptionalTensors,
    biases: OptionalTensors,
    gains: Tensor,
    factors: Tensor,
) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """Return the gradients in the weights and biases that there are, and in every log γ."""
    in_weights, in_biases, in_gammas = [], [], []
    shifted = iter(bias_grads)
    own = gains.split([len(grad) for grad in grads])
    for grad, weight, bias, gain, f in zip(grads, weights, biases, own, factors.unbind(), strict=True):
        through = grad.sum() if weight is None else (grad * weight).sum()
        if bias is not None:
            bias_grad = next(shifted)
            through = through + (bias_grad * bias).sum()
            in_biases.append(f * bias_grad)
        through = torch.where(f < 1, through * f, torch.zeros_like(through))
        in_gammas.append(through)
        if weight is not None:
            slopes = gain * weight.abs()
            steep = slopes.amax()
            shares = (slopes == steep).to(gain.dtype)
            shares = shares * gain * weight.sign() * (-through / (steep * shares.sum()))
            in_weights.append(f * grad + torch.where(f < 1, shares, torch.zeros_like(shares)))
    return in_weights, in_biases, torch.stack(in_gammas)


def steepest(gains: Tensor, weight: Tensor | None) -> Tensor:
    """‖BN‖ = max |w_c| / std_c over the last dimension."""
    return (gains if weight is None else gains * weight.abs()).amax(-1, keepdim=True)


def factor(gamma: Tensor, steep: Tensor) -> Tensor:
    """min(1, γ / ‖BN‖), without a division by ‖BN‖ = 0, whose derivative would be no number."""
    binds = steep > gamma
    return torch.where(binds, gamma / torch.where(binds, steep, 1.0), 1.0)


def scaled_weight(gains: Tensor, weight: Tensor | None, f: Tensor) -> Tensor:
    """Return f w, each channel in its own place in memory.

    PyTorch's CPU backward would read beyond the end of an expanded weight.
    """
    return f.expand_as(gains).contiguous() if weight is None else weight * f

"""The cross-entropy of each sample without cancellation, right where the model is confident."""

import torch
from torch import Tensor
from torch.nn import functional as F

from lowcurve.errors import UserError


def log_odds_against(logits: Tensor, y: Tensor) -> Tensor:
    r"""Return m = log Σ_{c≠y} exp(z_c − z_y), so that the probability of the label is p_y = 1 / (1 + eᵐ).

    `logits` z has shape (N, C) with C ≥ 2, `y` shape (N,). The label's own logit is left out of the sum
    rather than subtracted from it, so nothing cancels when p_y rounds to 1.
    """
    if logits.ndim != 2 or logits.shape[1] < 2:
        raise UserError(
            f"cross-entropy needs logits of shape (N, C) with C ≥ 2 classes, got {tuple(logits.shape)}; "
            "give a two-class model two outputs"
        )
    label = y.unsqueeze(1)  # (N, 1)
    others = torch.arange(logits.shape[1] - 1, device=y.device).expand(len(y), -1)
    others = others + (others >= label)  # (N, C-1): every class but the label
    return torch.logsumexp(logits.gather(1, others) - logits.gather(1, label), dim=1)


def cross_entropy_per_sample(logits: Tensor, y: Tensor) -> Tensor:
    r"""Return ℓᵢ = −log p_y as softplus(m) with m = log Σ_{c≠y} exp(z_c − z_y), shape (N,).

    The usual log-softmax subtracts two nearly equal numbers once p_y is within rounding of 1, and its
    gradient becomes zero or noise; this form keeps full relative precision of the loss and of its first
    two derivatives.

    >>> z = torch.tensor([[40.0, 0.0, 0.0]])
    >>> y = torch.tensor([0])
    >>> F.cross_entropy(z, y).item(), round(cross_entropy_per_sample(z, y).item() * 1e17, 3)
    (0.0, 0.85)
    """
    m = log_odds_against(logits, y)
    # softplus(m) = m + softplus(−m); each side is exact in value and derivatives where it is taken.
    return torch.where(m > 0, m + F.softplus(-m), F.softplus(m))

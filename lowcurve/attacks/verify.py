"""Is it an attack at all? Arguments are checked before, every example on the unchanged model afterwards."""

import math
from numbers import Real

import torch
from torch import Tensor, nn

from lowcurve import checks
from lowcurve.attacks import ball
from lowcurve.attacks.losses import misclassified
from lowcurve.data.pixels import pixels
from lowcurve.errors import UserError

TOLERANCE = 1e-6  # relative to ε: what the rounding of ε itself and of the norm may add


def check_inputs(x: Tensor, y: Tensor) -> None:
    """Refuse samples outside [0, 1] or neither float32 nor float64, and labels that do not fit."""
    checks.samples(x)
    checks.tensor(y=y)
    if x.dtype not in (torch.float32, torch.float64) or x.dim() < 2 or not len(x):
        raise UserError(
            f"expected a batch of float32 or float64 samples, got {x.dtype} of shape {tuple(x.shape)}; "
            "divide 8-bit images by 255, and add a batch dimension to a single sample"
        )
    pixels(x)
    if y.shape != (len(x),) or y.dtype != torch.int64:
        raise UserError(f"expected one int64 label per sample, ({len(x)},), got {y.dtype} of shape {tuple(y.shape)}")


def check_logits(logits: Tensor, y: Tensor) -> None:
    """Refuse outputs that are not two or more finite logits per sample, and labels beyond them."""
    checks.logits(logits, len(y))
    if logits.dim() != 2 or len(logits) != len(y) or logits.shape[1] < 2:
        raise UserError(f"expected logits of shape ({len(y)}, two or more classes), got {tuple(logits.shape)}")
    if not bool(logits.isfinite().all()):
        raise UserError("expected finite logits, got NaN or infinity; check the model's weights")
    if int(y.min()) < 0 or int(y.max()) >= logits.shape[1]:
        raise UserError(f"expected labels from 0 to {logits.shape[1] - 1}, got {int(y.min())} to {int(y.max())}")


def check_norm(norm: float) -> float:
    """Return 2.0 or infinity, the norms that attacks know."""
    if isinstance(norm, bool) or not isinstance(norm, Real) or norm not in (2, math.inf):
        raise UserError(f"expected norm 2 or math.inf, got {norm!r}")
    return float(norm)


def radii_per_sample(eps: float | Tensor, x: Tensor, norm: float) -> Tensor:
    """Return one radius per sample in the type and on the device of `x`, none larger than the box [0, 1]^d."""
    if not isinstance(eps, Tensor):
        checks.numbers(least=0, eps=checks.one_or_more(eps))
    try:
        radii = torch.as_tensor(eps, dtype=torch.float64, device=x.device)
    except (TypeError, ValueError, RuntimeError):
        raise UserError(f"expected eps as a number or one number per sample, got {eps!r}") from None
    if radii.dim() > 1 or (radii.dim() == 1 and len(radii) != len(x)):
        raise UserError(f"expected one eps or {len(x)} of them, got shape {tuple(radii.shape)}")
    if not bool((radii >= 0).all() & radii.isfinite().all()):
        raise UserError(f"expected eps ≥ 0, got {eps}")
    return radii.clamp_max(diameter(x, norm)).to(x.dtype).expand(len(x)).clone()


def diameter(x: Tensor, norm: float) -> float:
    """Return the largest distance of two points of the box [0, 1]^d."""
    return 1.0 if norm == math.inf else math.sqrt(x[0].numel())


def successes(model: nn.Module, adversarial: Tensor, x: Tensor, y: Tensor, eps: Tensor, norm: float) -> Tensor:
    """Say which examples are in the ball (to 1e-6 of ε), in [0, 1] and misclassified, all of it computed anew.

    A point at which some logit is NaN or infinite is no example: the model has no answer there, not a wrong one.
    """
    near = ball.distance(adversarial, x, norm) <= eps.double() * (1 + TOLERANCE)
    flat = adversarial.flatten(1)
    inside = ((flat >= 0) & (flat <= 1)).all(1)
    with torch.no_grad():
        wrong = misclassified(model(adversarial), y)
    return wrong & near & inside

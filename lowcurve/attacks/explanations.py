"""Do explanations survive noise? Attribution maps before and after a small random step, for several models."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from lowcurve.attacks import ball, randomness, verify
from lowcurve.attacks.losses import ascent
from lowcurve.errors import UserError, unknown_name
from lowcurve.observe import observing
from lowcurve.outputs import classifier
from lowcurve.plots import draw_pictures

_TOP = 0.1  # share of the features that count as the most important ones


def _gradient(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return ∂z_y/∂x, the gradient of the label's logit."""
    return ascent(model, x, lambda logits: logits.gather(1, y[:, None])[:, 0])[2]


def _captum(method: str) -> Callable[[nn.Module, Tensor, Tensor], Tensor]:
    """Return an attribution of the captum package, which is an extra."""

    def explain(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        try:
            from captum import attr
        except ImportError:
            raise UserError(
                f"expected the package captum for {method}; pip install captum, or use 'gradient'"
            ) from None
        found: Tensor = getattr(attr, method)(model).attribute(x.clone().requires_grad_(), target=y)
        return found.detach()

    return explain


EXPLANATIONS: dict[str, Callable[[nn.Module, Tensor, Tensor], Tensor]] = {
    "gradient": _gradient,
    "input-x-gradient": _captum("InputXGradient"),
    "integrated-gradients": _captum("IntegratedGradients"),
}


@dataclass(frozen=True)
class Stability:
    """Attribution maps of N samples, and how alike they are before and after the noise.

    `similarity` is the cosine between the two maps; `overlap` the share of the tenth of the features with the
    largest attributions that both have in common.
    """

    before: Tensor
    after: Tensor
    similarity: Tensor
    overlap: Tensor


def noisy(x: Tensor, radius: float, seed: int = 0) -> Tensor:
    """Move each sample by `radius` in a random direction of its own (less where [0, 1] ends)."""
    return ball.random_start(randomness.keys(x, seed), x, verify.radii_per_sample(radius, x, 2.0), 2.0)


def explanation_stability(
    model: nn.Module, x: Tensor, y: Tensor, *, radius: float = 0.1, method: str = "gradient", seed: int = 0
) -> Stability:
    """Explain the label's logit at `x` and at `noisy(x, radius, seed)`, and compare.

    `method` is a key of `EXPLANATIONS`. An affine model's gradient does not change:

    >>> x, y = torch.rand(2, 5), torch.tensor([0, 1])
    >>> explanation_stability(nn.Linear(5, 3), x, y).overlap
    tensor([1., 1.])
    """
    if method not in EXPLANATIONS:
        raise unknown_name("explanation", method, EXPLANATIONS)
    verify.check_inputs(x, y)
    model = classifier(model)
    with observing(model):
        before, after = (
            EXPLANATIONS[method](model, point, y) for point in (x.detach(), noisy(x.detach(), radius, seed))
        )
    first, second = before.flatten(1), after.flatten(1)
    count = max(round(_TOP * first.shape[1]), 1)
    common = _top(first, count) & _top(second, count)
    similarity = (ball.unit(first) * ball.unit(second)).sum(1)
    return Stability(before, after, similarity, common.sum(1) / count)


def _top(attribution: Tensor, count: int) -> Tensor:
    """Mark the `count` features of each row with the largest absolute attribution."""
    chosen = attribution.abs().topk(count, dim=1).indices
    return torch.zeros_like(attribution, dtype=torch.bool).scatter(1, chosen, True)


def plot_explanations(x: Tensor, perturbed: Tensor, found: Mapping[str, Stability], path: Path) -> None:
    """Draw one row per sample: the input and the noisy input, and each model's maps at both."""
    columns: list[tuple[str, Tensor]] = [("input", x), ("with noise", perturbed)]
    for name, stability in found.items():
        columns += [(name, stability.before.abs()), ("with noise", stability.after.abs())]
    drawn = [
        (title, [_picture(one.cpu(), colored=place < 2) for one in maps], "gray" if place < 2 else "inferno")
        for place, (title, maps) in enumerate(columns)
    ]
    draw_pictures(drawn, path.with_suffix(""), {path.suffix[1:] or "png": 150})


def _picture(values: Tensor, colored: bool) -> Tensor:
    """Bring one sample into height × width (× RGB where it is a color image); a flat one becomes a strip."""
    if values.dim() == 3 and len(values) == 3 and colored:
        return values.permute(1, 2, 0)
    if values.dim() >= 3:
        return values.amax(0).flatten(0, -2)
    return values if values.dim() == 2 else values[None]

"""Are inputs pixels of [0, 1]? If they were normalized, the refusal shows the layer that should do it instead."""

import math

from torch import Tensor, tensor

from lowcurve.errors import UserError

# What others subtract and divide by, per channel.
_NORMALIZATIONS = {
    "ImageNet's normalization": ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    "CIFAR-10's normalization": ([0.4914, 0.4822, 0.4465], [0.247, 0.2435, 0.2616]),
    "CIFAR-100's normalization": ([0.5071, 0.4865, 0.4409], [0.2673, 0.2564, 0.2762]),
    "SVHN's normalization": ([0.4377, 0.4438, 0.4728], [0.198, 0.201, 0.197]),
    "CLIP's normalization": ([0.4815, 0.4578, 0.4082], [0.2686, 0.2613, 0.2758]),
    "MNIST's normalization": ([0.1307], [0.3081]),
    "Fashion-MNIST's normalization": ([0.286], [0.353]),
    "a map to [-1, 1]": ([0.5], [0.5]),
}


def pixels(x: Tensor) -> None:
    """Refuse inputs outside [0, 1]; the message proposes the normalization that the model should do itself."""
    if bool((x >= 0).all()) and bool((x <= 1).all()):
        return
    low, high = float(x.min()), float(x.max())
    found = f"expected inputs in [0, 1], got {low:g} to {high:g}; radii are in these units: "
    if not math.isfinite(low + high):
        raise UserError(f"{found}look for what is not finite in them")
    if low >= 0:
        raise UserError(f"{found}divide by the largest value, x / {255 if high > 2 else float(f'{high:.3g}'):g}")
    whose, mean, std = _normalization(x)
    raise UserError(
        f"{found}they look as after {whose}. Pass pixels, x * std + mean, and let the model normalize them: "
        f"torch.nn.Sequential(lowcurve.Normalize(mean={mean}, std={std}), model)"
    )


def _normalization(x: Tensor) -> tuple[str, list[float], list[float]]:
    """Guess by what pixels became `x`: of those known under which all were in [0, 1], the one that fills it best."""
    channels = x.transpose(0, 1).flatten(1).double()
    low, high = channels.amin(1), channels.amax(1)
    fits = []
    for name, (mean, std) in _NORMALIZATIONS.items():
        if len(mean) in (1, len(low)):
            m, s = tensor(mean).to(low), tensor(std).to(low)
            down, up = low * s + m, high * s + m
            if bool((down > -0.005).all() & (up < 1.005).all()):
                fits.append((float((down.clamp_min(0) + 1 - up.clamp_max(1)).sum()), name))
    if fits:
        name = min(fits)[1]
        return name, *_NORMALIZATIONS[name]
    span = float(high.max() - low.min())
    return (
        "a normalization (here the one that its range suggests)",
        [float(f"{-float(low.min()) / span:.4g}")],
        [float(f"{1 / span:.4g}")],
    )

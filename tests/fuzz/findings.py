"""What is a finding? A number that is further from the truth than its conditioning explains."""

from collections.abc import Callable

import torch
from torch import Tensor

from tests.fuzz.build import Unfit

Values = dict[str, Tensor]

_JITTERS = 3
_MARGIN = 200.0  # how many times the error that plain PyTorch makes is still no finding


class Finding(AssertionError):
    """The library and an independent truth disagree."""


def noise(truth: Callable[[Tensor], Values], plain: Callable[[Tensor], Values], x: Tensor) -> tuple[Values, Values]:
    """Return the truth at x, in float64, and for each value the error to expect of the precision of x.

    That error is the largest among what `plain` PyTorch of that precision makes, and what moving x by a few units in
    its last place does to the truth: steps, kinks and huge weights amplify roundings without anyone's fault.
    """
    wide = x.double()
    try:
        exact, rounded = truth(wide), [plain(x)]
    except (RuntimeError, ValueError) as error:  # PyTorch has no second derivative of hardsigmoid, for example
        raise Unfit(str(error)) from error
    generator = torch.Generator().manual_seed(0)
    unit = _unit(x.dtype)
    for _ in range(_JITTERS):
        step = (2 * torch.rand(x.shape, generator=generator, dtype=torch.float64) - 1) * unit
        rounded.append(truth(wide + step * (1 + wide.abs())))
    error = {
        name: torch.stack([(values[name].double() - value).abs().max() for values in rounded]).max()
        for name, value in exact.items()
        if value.numel()
    }
    return exact, error


def compare(found: Values, exact: Values, error: Values, precision: torch.dtype, what: str) -> None:
    """Raise a finding where a value is further from the truth than the error to expect explains."""
    unit, overflow = _unit(precision), torch.finfo(precision).max / 1e4
    finite = [value for value in exact.values() if value.numel() and bool(value.isfinite().all())]
    # A saturated softplus has a tiny slope, known as exactly as one of size 1 is: it is computed from the output.
    largest = max([1.0, *(float(value.abs().max()) for value in finite)])
    for name, value in exact.items():
        if not value.numel() or not bool(value.isfinite().all()) or not float(error[name]) < overflow:
            continue
        distance = (found[name].double() - value).abs().max()
        allowed = _MARGIN * error[name] + unit * (1000 * value.abs().max() + 50 * largest + unit)
        if not bool(distance <= allowed):
            raise Finding(
                f"{what}: {name} is {float(distance):.3g} from the truth, of size {float(value.abs().max()):.3g}; "
                f"{float(allowed):.3g} would be rounding"
            )


def _unit(precision: torch.dtype) -> float:
    """Return the relative error of one rounding; the truth itself, in float64, has several of them."""
    return max(torch.finfo(precision).eps, 1e-12)

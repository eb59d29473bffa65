"""Is an argument what it should be? Checks for the first lines of public functions; each says expected, got, do.

Arguments are passed by name, so that a message can name them: `whole(1, steps=steps)`.
"""

import copy
import math
import os
from collections.abc import Callable, Iterable, Sequence
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor, nn

from lowcurve.errors import UserError, unknown_name

LARGEST_WHOLE = 2**63 - 1  # what PyTorch takes for a size or a seed
SHOWN = 80  # characters of a value in a message


def shown(value: object) -> str:
    """Write a value for a message: a tensor by its type and shape, anything else cut where it is long.

    >>> shown(torch.zeros(2, 3)), shown("x" * 500)[-5:]
    ('a tensor (2, 3) of torch.float32', 'xxxx…')
    """
    if isinstance(value, Tensor):
        return f"a tensor {tuple(value.shape)} of {value.dtype}" if not value.is_nested else "a nested tensor"
    if isinstance(value, nn.Module):
        return f"a {type(value).__name__}"
    text = repr(value)
    return text if len(text) <= SHOWN else text[:SHOWN] + "…"


def whole(least: int = 0, most: int = LARGEST_WHOLE, **given: object) -> None:
    """Refuse what is no whole number from `least` to `most`; True, 3.0 and "3" are none."""
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, Integral) or not least <= int(value) <= most:
            upper = f" to {most}" if most < LARGEST_WHOLE else " on"
            raise UserError(f"expected {name} as a whole number from {least}{upper}, got {shown(value)}")


def number(*, above: float | None = None, least: float | None = None, **given: object) -> None:
    """Refuse what is no finite number above `above`, or from `least` on."""
    limit = f" above {above:g}" if above else f" from {least:g} on" if least is not None else ""
    kind = "positive" if above == 0 else "finite"
    for name, value in given.items():
        real = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
        if not real or not (above is None or value > above) or not (least is None or value >= least):  # type: ignore[operator]
            raise UserError(f"expected {name} as a {kind} number{limit}, got {shown(value)}")


def numbers(*, above: float | None = None, least: float | None = None, **given: object) -> None:
    """Refuse what is no list, tuple or flat tensor of at least one such number."""
    for name, values in given.items():
        rows = values.tolist() if isinstance(values, Tensor) and values.ndim == 1 and not values.is_meta else values
        if isinstance(rows, str | bytes) or not isinstance(rows, Sequence) or not len(rows):
            raise UserError(f"expected {name} as one or more numbers in a list or tuple, got {shown(values)}")
        for value in rows:
            number(above=above, least=least, **{name if len(rows) == 1 else f"each of {name}": value})


def one_or_more(value: Any) -> list[Any]:
    """Return a list of what may be one number, several, or a tensor of them.

    >>> one_or_more(0.5), one_or_more((1, 2))
    ([0.5], [1, 2])
    """
    if isinstance(value, Tensor) and not value.is_meta and value.layout is torch.strided and value.ndim < 2:
        value = value.tolist()
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str | bytes) else [value]


def flag(**given: object) -> None:
    """Refuse what is neither True nor False."""
    for name, value in given.items():
        if not isinstance(value, bool):
            raise UserError(f"expected {name} as True or False, got {shown(value)}")


def choice(known: Iterable[str], **given: object) -> None:
    """Refuse a name that is not among `known`; the message has the nearest one."""
    names = list(known)
    for kind, value in given.items():
        if not isinstance(value, str) or value not in names:
            raise unknown_name(kind.replace("_", " "), value if isinstance(value, str) else shown(value), names)


def path(**given: object) -> None:
    """Refuse what can be no path: neither a text nor a Path, or nothing, or with a null character in it."""
    for name, value in given.items():
        if not isinstance(value, str | os.PathLike) or not str(value).strip() or "\0" in str(value):
            raise UserError(f"expected {name} as a path, got {shown(value)}")


def size(**given: object) -> None:
    """Refuse what is no shape: up to five whole numbers from 1 on, which fit a tensor together."""
    for name, value in given.items():
        sides = value if isinstance(value, tuple | list) else None
        if sides is None or not 1 <= len(sides) <= 5:
            raise UserError(f"expected {name} as a tuple of sizes such as (3, 32, 32), got {shown(value)}")
        for side in sides:
            whole(1, 2**31 - 1, **{f"each of {name}": side})
        if math.prod(sides) >= 2**40:
            raise UserError(f"expected {name} of inputs that fit into memory, got {shown(value)}")


def modules(**given: object) -> None:
    """Refuse what is no nn.Module."""
    for name, value in given.items():
        if not isinstance(value, nn.Module):
            what = f"the class {value.__name__}" if isinstance(value, type) else shown(value)
            raise UserError(f"expected {name} as an nn.Module, got {what}; pass a module that was made already")


def usable(model: object, name: str = "model") -> None:
    """Refuse a model whose weights are no finite floats in memory, of one type all of them."""
    modules(**{name: model})
    assert isinstance(model, nn.Module)
    for place, weight in (*model.named_parameters(), *model.named_buffers()):
        if nn.parameter.is_lazy(weight):
            raise UserError(f"{name}.{place} has no size yet; run the model once, so that its lazy layers know theirs")
        if weight.is_meta:
            raise UserError(f"{name}.{place} is on the meta device and has no values; load the weights first")
        if weight.is_complex():
            raise UserError(f"expected {name} with real weights, got {place} of {weight.dtype}")
        if not weight.is_floating_point():
            if isinstance(weight, nn.Parameter):
                raise UserError(f"expected {name} with float weights, got {place} of {weight.dtype}; convert it")
            continue
        if not bool(weight.detach().isfinite().all()):
            raise UserError(f"expected {name} with finite weights, got NaN or infinity in {place}; train it again")


def copied(model: nn.Module) -> nn.Module:
    """Return a deep copy; legacy weight norms, among others, cannot be copied once they have run."""
    try:
        return copy.deepcopy(model)
    except Exception as error:
        raise UserError(
            f"cannot copy the model: {error}; where it has torch.nn.utils.weight_norm, call remove_weight_norm first "
            "or use torch.nn.utils.parametrizations"
        ) from error


def tensor(**given: object) -> None:
    """Refuse what is no dense tensor with values."""
    for name, value in given.items():
        if not isinstance(value, Tensor):
            raise UserError(f"expected {name} as a tensor, got {shown(value)}; torch.as_tensor makes one of an array")
        if value.is_nested or value.layout is not torch.strided or value.is_quantized:
            raise UserError(f"expected {name} as a dense tensor, got {value.layout} of {value.dtype}; make it dense")
        if value.is_meta:
            raise UserError(f"expected {name} with values, got a tensor on the meta device; load its values first")


FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def samples(x: object, name: str = "x") -> None:
    """Refuse what is no batch of float samples, (N, ...)."""
    tensor(**{name: x})
    assert isinstance(x, Tensor)
    if x.ndim < 2:
        raise UserError(
            f"expected a batch of inputs, (N, ...), got {name} of shape {tuple(x.shape)}; add a dimension: {name}[None]"
        )
    if x.dtype not in FLOATS:
        raise UserError(f"expected {name} of floats in [0, 1], got {x.dtype}; convert it: x.float() / 255")
    if x[:1].numel() == 0 and len(x):
        raise UserError(f"expected samples with at least one number each, got {name} of shape {tuple(x.shape)}")


def labels(y: object, x: Tensor) -> None:
    """Refuse what is not one integer label per sample; whether the model has such a class, its logits tell."""
    tensor(y=y)
    assert isinstance(y, Tensor)
    integer = not (y.is_floating_point() or y.is_complex() or y.dtype == torch.bool)
    if y.shape != (len(x),) or not integer:
        raise UserError(
            f"expected {len(x)} integer labels, shape ({len(x)},), got {tuple(y.shape)} of {y.dtype}; "
            "labels are classes counted from 0, torch.int64"
        )


def run(model: nn.Module, x: Tensor, forward: Callable[[Tensor], Any] | None = None) -> Any:
    """Return model(x), or forward(x) where the model is run in another way.

    Whatever the model's own code raises becomes a refusal that says what the model was given.
    """
    try:
        return (forward or model)(x.clone())  # a model that works in place must not overwrite the caller's x
    except UserError:
        raise
    except Exception as error:
        kinds = {str(weight.dtype) for weight in model.parameters()} - {str(x.dtype)}
        places = {str(weight.device) for weight in model.parameters()} - {str(x.device)}
        apart = [f"its weights are {' and '.join(sorted(kinds))}"] if kinds else []
        apart += [f"its weights are on {' and '.join(sorted(places))}"] if places else []
        raise UserError(
            f"the model does not take inputs of shape {tuple(x.shape)}, {x.dtype}, on {x.device}: "
            f"{type(error).__name__}: {error}; {', '.join(apart) or 'pass inputs as the model expects them'}"
        ) from error


def logits(outputs: object, count: int) -> None:
    """Refuse outputs that are not one row of two or more real scores for each of `count` samples."""
    if not isinstance(outputs, Tensor) or outputs.ndim != 2 or len(outputs) != count or outputs.shape[1] < 1:
        raise UserError(
            f"expected logits of shape ({count}, classes), got {shown(outputs)}; wrap the model so that it returns them"
        )
    if not outputs.is_floating_point():
        raise UserError(f"expected logits of floats, got {outputs.dtype}; return the scores before any rounding")

"""The compiled loops of the C files beside this one, for tensors of which `applies` is true."""

import ctypes
import math
from importlib.util import find_spec

import torch
from torch import Tensor
from torch.nn import Parameter

from lowcurve.layers.linear_map import LinearMap

# What each function takes after the number of values or samples and that of threads: (n)umbers, (p)ointers, (f)loats.
_SIGNATURES = {
    "lowcurve_value": "pffp",
    "lowcurve_gradient": "ppffp",
    "lowcurve_gradients": "ppffpp",
    "lowcurve_second": "pppffppp",
    "lowcurve_norm": "nnpppppffpppp",
    "lowcurve_norm_gradient": "nnppppppppp",
    "lowcurve_norm_second": "nnpppppppppppp",
    "lowcurve_norm_softplus": "nnpppppffpfffpppp",
    "lowcurve_norm_softplus_gradient": "nnppppppfffpppppp",
    "lowcurve_norm_softplus_second": "nnppppppppppfffpppppp",
    "lowcurve_power": "nnfp",
    "lowcurve_unit": "pppp",
    "lowcurve_unit_gradient": "pppfpp",
}
_CONSTANTS = ("lowcurve_block", "lowcurve_parts")
_RETURN_DOUBLE = {"lowcurve_gradients", "lowcurve_second", "lowcurve_unit"}
_is_batched = torch._C._functorch.is_legacy_batchedtensor  # by `is_grads_batched`: it has no memory of its own
_GIVEN_AS_THEY_ARE = (int, float, type(None))
_TYPES = {"n": ctypes.c_long, "p": ctypes.c_void_p, "f": ctypes.c_float}


_POINTERS = ("weight", "left", "right", "slope", "scratch")
_LENGTHS = (
    "in",
    "out",
    "height",
    "width",
    "out_h",
    "out_w",
    "kernel_h",
    "kernel_w",
    "stride_h",
    "stride_w",
    "above",
    "before",
    "settled",
)


class _Layer(ctypes.Structure):
    """A convolution as `_power.c` sees it."""

    _fields_ = [(name, ctypes.c_void_p) for name in _POINTERS] + [(name, ctypes.c_long) for name in _LENGTHS]


def _library() -> ctypes.CDLL | None:
    spec = find_spec("lowcurve.layers._compiled")
    if spec is None or spec.origin is None:
        return None
    try:
        library = ctypes.CDLL(spec.origin)
        for name, letters in _SIGNATURES.items():
            getattr(library, name).argtypes = [ctypes.c_long, ctypes.c_int, *(_TYPES[letter] for letter in letters)]
            getattr(library, name).restype = ctypes.c_double if name in _RETURN_DOUBLE else None
        library.lowcurve_power_room.argtypes = [ctypes.c_void_p]
        library.lowcurve_power_room.restype = ctypes.c_long
        for name in _CONSTANTS:
            ctypes.c_long.in_dll(library, name)
    except (OSError, AttributeError, ValueError):  # built for another machine, or from older sources
        return None
    return library


_LIBRARY = _library()
_BLOCK, _PARTS = (0 if _LIBRARY is None else ctypes.c_long.in_dll(_LIBRARY, name).value for name in _CONSTANTS)


def applies(*tensors: Tensor) -> bool:
    """Whether the loops were compiled, at installation, and all tensors are plain float32 ones on the CPU."""
    if _LIBRARY is None or torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return False
    if torch._C._len_torch_dispatch_stack() > 0:  # a mode that wants to see operations, or to replace them
        return False
    return all(map(_plain, tensors))


def _plain(t: Tensor) -> bool:
    memory = type(t) in (Tensor, Parameter) and not _is_batched(t) and t.layout is torch.strided and not t.is_neg()
    return memory and t.dtype == torch.float32 and t.device.type == "cpu"


def normalizes(x: Tensor, *per_channel: Tensor | None) -> bool:
    """Whether the loops for batch norm apply: to a row-major x, with others, where given, of one value per channel."""
    return applies(x, *(t for t in per_channel if t is not None)) and x.is_contiguous() and x.numel() > 0


def value(x: Tensor, beta: float, shift: float) -> Tensor:
    """Return s₀(x; β) + shift."""
    x = _dense(x)
    y = torch.empty_like(x)
    _call("lowcurve_value", x.numel(), x, beta, shift, y)
    return y


def gradient(grad: Tensor, y: Tensor, beta: float, shift: float) -> Tensor:
    """Return g σ for the upstream gradient g and the activation's output y."""
    y, grad = _alike(y, grad)
    in_x = torch.empty_like(y)
    _call("lowcurve_gradient", y.numel(), grad, y, beta, shift, in_x)
    return in_x


def gradients(grad: Tensor, y: Tensor, beta: float, shift: float) -> tuple[Tensor, Tensor]:
    """Return g σ, and Σ g (log 2 - H(σ)) / β, the gradient in log β."""
    y, grad = _alike(y, grad)
    in_x = torch.empty_like(y)
    total = _call("lowcurve_gradients", y.numel(), grad, y, beta, shift, in_x, _partial(y))
    return in_x, y.new_tensor(total / beta)


def second(outer: Tensor, grad: Tensor, y: Tensor, beta: float, shift: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return h σ, h g β (1 - σ), and the sum of the latter times y - shift, for h the gradient of g σ."""
    y, outer, grad = _alike(y, outer, grad)
    in_grad, in_y = torch.empty_like(y), torch.empty_like(y)
    total = _call("lowcurve_second", y.numel(), outer, grad, y, beta, shift, in_grad, in_y, _partial(y))
    return in_grad, in_y, y.new_tensor(total)


def batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return w x̂ + b with x̂ = (x − μ) r, and μ and r = 1/std of each channel; move the running statistics."""
    y, mean = torch.empty_like(x), x.new_empty(x.shape[1])
    invstd = torch.empty_like(mean)
    given = (x, _packed(weight), _packed(bias), running_mean, running_var, momentum, eps)
    _call("lowcurve_norm", len(x), *_channels(x), *given, y, mean, invstd, _sums(x))
    return y, mean, invstd


def batch_norm_gradient(
    grad: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, invstd: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (w r P(g), Σ g x̂, Σ g): the gradients in x, weight and bias, the latter two even where there are none.

    P(g) = g − M(g) − x̂ M(g x̂), with M the channel's mean; see `batchnorm_gradient`.
    """
    in_x, in_weight, in_bias = torch.empty_like(x), torch.empty_like(mean), torch.empty_like(mean)
    given = map(_packed, (grad, x, weight, mean, invstd))
    _call("lowcurve_norm_gradient", len(x), *_channels(x), *given, in_x, in_weight, in_bias, _sums(x))
    return in_x, in_weight, in_bias


def batch_norm_second(
    outer: Tensor,
    grad: Tensor,
    x: Tensor,
    weight: Tensor | None,
    mean: Tensor,
    invstd: Tensor,
    grad_hat: Tensor,
    grad_sum: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of ⟨outer, w r P(g)⟩ in g, x and w; `grad_hat` = Σ g x̂ and `grad_sum` = Σ g."""
    in_grad, in_x, in_weight = torch.empty_like(x), torch.empty_like(x), torch.empty_like(mean)
    given = map(_packed, (outer, grad, x, weight, mean, invstd, grad_hat, grad_sum))
    _call("lowcurve_norm_second", len(x), *_channels(x), *given, in_grad, in_x, in_weight, _sums(x))
    return in_grad, in_x, in_weight


def norm_softplus(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    other: Tensor | None,
    factor: float,
    beta: float,
    shift: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return y = s₀(factor (w x̂ + b + other); β) + shift, and what `batch_norm` returns besides."""
    y, mean = torch.empty_like(x), x.new_empty(x.shape[1])
    invstd = torch.empty_like(mean)
    given = (x, _packed(weight), _packed(bias), running_mean, running_var, momentum, eps)
    found = (y, mean, invstd, _sums(x))
    _call("lowcurve_norm_softplus", len(x), *_channels(x), *given, _packed(other), factor, beta, shift, *found)
    return y, mean, invstd


def norm_softplus_gradient(
    grad: Tensor,
    y: Tensor,
    x: Tensor,
    weight: Tensor | None,
    mean: Tensor,
    invstd: Tensor,
    factor: float,
    beta: float,
    shift: float,
    with_other: bool,
    with_beta: bool,
) -> tuple[Tensor, Tensor | None, Tensor, Tensor, Tensor | None]:
    """Return the gradients in x, other, weight, bias and log β."""
    in_x, in_weight, in_bias = torch.empty_like(x), torch.empty_like(mean), torch.empty_like(mean)
    in_other = torch.empty_like(x) if with_other else None
    deficits = torch.empty_like(mean) if with_beta else None
    given = map(_packed, (grad, y, x, weight, mean, invstd))
    found = (in_x, in_other, in_weight, in_bias, deficits, _sums(x))
    _call("lowcurve_norm_softplus_gradient", len(x), *_channels(x), *given, factor, beta, shift, *found)
    return in_x, in_other, in_weight, in_bias, None if deficits is None else deficits.sum() / beta


def norm_softplus_second(
    outer: Tensor,
    outer_other: Tensor | None,
    grad: Tensor,
    y: Tensor,
    x: Tensor,
    weight: Tensor | None,
    mean: Tensor,
    invstd: Tensor,
    in_weight: Tensor,
    in_bias: Tensor,
    factor: float,
    beta: float,
    shift: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients in g, y, x, weight and log β of ⟨outer, in_x⟩ + ⟨outer_other, in_other⟩."""
    found = torch.empty_like(x), torch.empty_like(x), torch.empty_like(x), torch.empty_like(mean)
    in_beta = x.new_zeros(_PARTS * x.shape[1])
    given = map(_packed, (outer, outer_other, grad, y, x, weight, mean, invstd, in_weight, in_bias))
    _call(
        "lowcurve_norm_softplus_second", len(x), *_channels(x), *given, factor, beta, shift, *found, in_beta, _sums(x)
    )
    return *found, in_beta.sum()


def unit(weight: Tensor, slope: Tensor) -> tuple[Tensor, float]:
    """Return W / σ and σ = ⟨W, S⟩, or 1 where that is below the smallest normal number."""
    weight, slope = _alike(weight, slope)
    y = torch.empty_like(weight)
    return y, _call("lowcurve_unit", y.numel(), weight, slope, y, _partial(y))


def unit_gradient(grad: Tensor, y: Tensor, slope: Tensor, sigma: float) -> Tensor:
    """Return (g - ⟨g, Y⟩ S) / σ for Y = W / σ."""
    y, grad, slope = _alike(y, grad, slope)
    in_weight = torch.empty_like(y)
    _call("lowcurve_unit_gradient", y.numel(), grad, y, slope, sigma, in_weight, _partial(y))
    return in_weight


def power_iterations(
    maps: list[LinearMap],
    weights: list[Tensor],
    left: list[Tensor],
    right: list[Tensor],
    least: int,
    most: int,
    settled: float,
) -> tuple[list[Tensor], list[bool]]:
    """Replace v by Wᵀu and u by W v, of unit length, `least` to `most` times for each layer.

    Return each ∂⟨u, W v⟩/∂W, and which layers have settled: those where ‖W v‖ exceeds ‖Wᵀu‖ by no more than a part
    `settled`. Between both is half an iteration.
    """
    weights = [weight.contiguous() for weight in weights]
    slopes = [torch.empty_like(weight) for weight in weights]
    layers = (_Layer * len(maps))(*map(_layer, maps, weights, left, right, slopes))
    assert _LIBRARY is not None
    rooms = [_LIBRARY.lowcurve_power_room(ctypes.byref(layer)) for layer in layers]
    scratch = weights[0].new_empty(sum(rooms)).split(rooms)
    for layer, own in zip(layers, scratch, strict=True):
        layer.scratch = own.data_ptr()
    _LIBRARY.lowcurve_power(len(layers), torch.get_num_threads(), least, most, settled, ctypes.addressof(layers))
    torch.autograd.graph.increment_version([*left, *right])
    return slopes, [bool(layer.settled) for layer in layers]


def _layer(m: LinearMap, *tensors: Tensor) -> _Layer:
    above, before = (pair[0] for pair in m.padding)
    sizes = (m.input_shape[0], m.output_shape[0], *m.input_shape[1:], *m.output_shape[1:], *m.kernel, *m.stride)
    return _Layer(*(tensor.data_ptr() for tensor in tensors), None, *sizes, above, before)


def _channels(x: Tensor) -> tuple[int, int]:
    """Return the number of channels, and of values per sample and channel."""
    return x.shape[1], math.prod(x.shape[2:])


def _sums(x: Tensor) -> Tensor:
    """Room for three kinds of sums over each part of each channel."""
    return torch.empty(3 * _PARTS * x.shape[1], dtype=torch.float64)


def _packed(tensor: Tensor | None) -> Tensor | None:
    return tensor if tensor is None or tensor.is_contiguous() else tensor.contiguous()


def _call(name: str, size: int, *arguments: Tensor | float | None) -> float:
    addressed = [a if type(a) in _GIVEN_AS_THEY_ARE else a.data_ptr() for a in arguments]  # type: ignore[union-attr]
    total: float = getattr(_LIBRARY, name)(size, torch.get_num_threads(), *addressed)
    return total


def _partial(y: Tensor) -> Tensor:
    return y.new_empty(y.numel() // _BLOCK + 1)


def _dense(x: Tensor) -> Tensor:
    """Return x itself where its elements fill one stretch of memory in any order, else a contiguous copy."""
    return x if x.is_contiguous() or torch.empty_like(x).stride() == x.stride() else x.contiguous()


def _alike(y: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    """Give all tensors y's order in memory."""
    y = _dense(y)
    return y, *(t if t.stride() == y.stride() else torch.empty_like(y).copy_(t) for t in others)

"""The linear map inside a Linear or convolution layer: what exactly does it do to an input of a given size?

Power iteration, operator norms and their bounds need the map without its bias, and its exact transpose, for
every stride, padding, dilation and number of groups.
"""

from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn import grad

from lowcurve import checks
from lowcurve.errors import UserError

_CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_TRANSPOSES = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
_WEIGHT_GRADIENTS = {1: grad.conv1d_weight, 2: grad.conv2d_weight, 3: grad.conv3d_weight}


@dataclass(frozen=True)
class LinearMap:
    """How a layer's weight acts on inputs of one size; the weight itself is an argument, so it may be anything.

    `input_shape` and `output_shape` are those of one sample. For a Linear layer the convolution fields are empty.
    `padding` holds (before, after) per spatial dimension.
    """

    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    stride: tuple[int, ...] = ()
    padding: tuple[tuple[int, int], ...] = ()
    dilation: tuple[int, ...] = ()
    kernel: tuple[int, ...] = ()
    groups: int = 1
    circular: bool = False

    @classmethod
    def of(cls, module: nn.Module, input_size: tuple[int, ...] | int | None = None) -> Self:
        """Describe `module` (Linear, Conv1d, Conv2d, Conv3d) on inputs of spatial size `input_size`.

        >>> LinearMap.of(nn.Conv2d(3, 8, 3, stride=2, padding=1), (32, 32)).output_shape
        (8, 16, 16)
        """
        if input_size is not None and not (isinstance(input_size, tuple) and not input_size):
            checks.size(input_size=input_size if isinstance(input_size, tuple | list) else (input_size,))
        if isinstance(module, nn.Linear):
            checks.whole(1, in_features=module.in_features, out_features=module.out_features)
            return cls((module.in_features,), (module.out_features,))
        if not isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
            raise UserError(f"expected a Linear or Conv layer, got {type(module).__name__}")
        size = _checked_size(module, input_size)
        padding = _padding(module)
        output = []
        for n, k, s, d, (before, after) in zip(
            size, module.kernel_size, module.stride, module.dilation, padding, strict=True
        ):
            free = n + before + after - d * (k - 1) - 1
            if n < 1 or free < 0:
                raise UserError(f"an input of size {size} is too small for {module}")
            output.append(free // s + 1)
        return cls(
            (module.in_channels, *size),
            (module.out_channels, *output),
            tuple(module.stride),
            padding,
            tuple(module.dilation),
            tuple(module.kernel_size),
            module.groups,
            module.padding_mode == "circular",
        )

    @property
    def numbers(self) -> list[int]:
        """All fields in one list, which is what an operator of PyTorch can be given; `from_numbers` reads it."""
        above, below = ([pair[i] for pair in self.padding] for i in range(2))
        shapes = [*self.input_shape, *self.output_shape]
        settings = [*self.stride, *above, *below, *self.dilation, *self.kernel]
        return [len(self.stride), *shapes, *settings, self.groups, int(self.circular)]

    @property
    def image_numbers(self) -> tuple[int, ...] | None:
        """The row of a convolution of images, in the order of `kernels/triton/maps.py`; None for what is no such.

        A Linear layer is one of an image of one pixel, a convolution of sequences one of images of height 1.
        """
        if len(self.stride) > 2 or self.groups > 1 or self.circular:
            return None
        below = 2 - len(self.stride)
        shapes = [(*(1,) * below, *shape[1:]) for shape in (self.input_shape, self.output_shape)]
        ones, padding = (1,) * below, [*(0,) * below, *(pair[0] for pair in self.padding)]
        steps = (*ones, *self.kernel, *ones, *self.stride, *padding, *ones, *self.dilation)
        return (self.input_shape[0], self.output_shape[0], *shapes[0], *shapes[1], *steps)

    @classmethod
    def from_numbers(cls, dims: int, numbers: list[int]) -> Self:
        """Make the map with so many spatial dimensions whose other numbers these are."""
        shapes, settings = numbers[: 2 * dims + 2], numbers[2 * dims + 2 : -2]
        stride, above, below, dilation, kernel = (tuple(settings[i * dims : (i + 1) * dims]) for i in range(5))
        ends = tuple(shapes[: dims + 1]), tuple(shapes[dims + 1 :])
        padding = tuple(zip(above, below, strict=True))
        return cls(*ends, stride, padding, dilation, kernel, numbers[-2], bool(numbers[-1]))

    def apply(self, weight: Tensor, x: Tensor) -> Tensor:
        """Return W x for a batch x of shape (N, *input_shape)."""
        if not self.stride:
            return F.linear(x, weight)
        x, padding = self._padded(x)
        return _CONVOLUTIONS[len(self.stride)](x, weight, None, self.stride, padding, self.dilation, self.groups)

    def adjoint(self, weight: Tensor, y: Tensor) -> Tensor:
        """Return Wᵀ y for a batch y of shape (N, *output_shape)."""
        if not self.stride:
            return y @ weight
        size = self.input_shape[1:]
        native = self._native_padding()
        leftover = tuple(
            (n + before + after - d * (k - 1) - 1) % s
            for n, (before, after), d, k, s in zip(
                size, self.padding, self.dilation, self.kernel, self.stride, strict=True
            )
        )
        x = _TRANSPOSES[len(self.stride)](
            y, weight, None, self.stride, native or 0, leftover, self.groups, self.dilation
        )
        if native is None:
            for axis, (n, (before, after)) in enumerate(zip(size, self.padding, strict=True)):
                x = _unpad(x, axis + 2, n, before, after, self.circular)
        return x

    def outer(self, y: Tensor, x: Tensor) -> Tensor:
        """Return the gradient of ⟨y, W x⟩ in the weight, for batches y and x; it does not depend on W."""
        if not self.stride:
            return y.mT @ x
        x, padding = self._padded(x)
        shape = (self.output_shape[0], self.input_shape[0] // self.groups, *self.kernel)
        gradient = _WEIGHT_GRADIENTS[len(self.stride)]
        return gradient(x, shape, y, self.stride, padding, self.dilation, self.groups)

    def _padded(self, x: Tensor) -> tuple[Tensor, tuple[int, ...] | int]:
        """Return x, padded where PyTorch's convolution cannot do that itself, and what it has to pad."""
        native = self._native_padding()
        if native is not None:
            return x, native
        flat = [p for pair in reversed(self.padding) for p in pair]
        return F.pad(x, flat, mode="circular" if self.circular else "constant"), 0

    def _native_padding(self) -> tuple[int, ...] | None:
        """The padding argument of PyTorch's convolution where it can do the padding itself."""
        if self.circular or any(before != after for before, after in self.padding):
            return None
        return tuple(before for before, _ in self.padding)


def _unpad(x: Tensor, axis: int, n: int, before: int, after: int, circular: bool) -> Tensor:
    """Apply the transpose of padding along one axis: crop, and where it was circular add the margins back."""
    left, middle, right = x.split([before, n, after], dim=axis)
    if not circular:
        return middle
    zeros = [(n - before, axis), (n - after, axis)]
    wrapped_left = torch.cat([middle.new_zeros(_resized(middle, *zeros[0])), left], dim=axis)
    wrapped_right = torch.cat([right, middle.new_zeros(_resized(middle, *zeros[1]))], dim=axis)
    return middle + wrapped_left + wrapped_right


def _resized(x: Tensor, size: int, axis: int) -> tuple[int, ...]:
    return tuple(size if i == axis else n for i, n in enumerate(x.shape))


def _checked_size(
    module: nn.Conv1d | nn.Conv2d | nn.Conv3d, input_size: tuple[int, ...] | int | None
) -> tuple[int, ...]:
    """Return the spatial size of the input, one number for each dimension of the kernel."""
    dims, kind = len(module.kernel_size), type(module).__name__
    size = (input_size,) * dims if isinstance(input_size, int) else tuple(input_size or ())
    if len(size) != dims:
        raise UserError(
            f"{kind} needs input_size, the {dims} spatial size(s) of its input, for example {(32,) * dims}; "
            f"got {input_size}"
        )
    if module.padding_mode not in ("zeros", "circular"):
        raise UserError(f"{kind} with padding_mode={module.padding_mode!r} is not supported; use 'zeros' or 'circular'")
    return size


def _padding(module: nn.Conv1d | nn.Conv2d | nn.Conv3d) -> tuple[tuple[int, int], ...]:
    """Return how much is added before and after, for each dimension."""
    if module.padding == "same":  # an odd number has its larger half after
        totals = [d * (k - 1) for d, k in zip(module.dilation, module.kernel_size, strict=True)]
        return tuple((total // 2, total - total // 2) for total in totals)
    sides = (0,) * len(module.kernel_size) if isinstance(module.padding, str) else module.padding
    return tuple((int(side), int(side)) for side in sides)

"""Independent truths: dense float64 matrices built from unit vectors."""

import torch
from torch import Tensor, nn


def dense_jacobian(module: nn.Module, input_shape: tuple[int, ...]) -> Tensor:
    """The matrix of an affine module, column by column from unit vectors, in float64."""
    module = module.double().eval()
    size = int(torch.tensor(input_shape).prod())
    with torch.no_grad():
        units = torch.eye(size, dtype=torch.float64).view(size, *input_shape)
        zero = module(torch.zeros(1, *input_shape, dtype=torch.float64))
        return (module(units) - zero).flatten(1).T

"""Does a look at a model see that model, and leave no trace?"""

import copy

import torch
from torch import nn

import lowcurve as lc
from lowcurve.observe import observing


def test_a_copy_made_where_another_was_freed_has_weights_of_its_own() -> None:
    """PyTorch's cache of parametrizations goes by address: a copy was given the weight of one that was freed."""
    layer = lc.spectral_norm(nn.Linear(3, 3)).eval()
    x = torch.rand(2, 3)
    with observing(layer):
        for shift in range(50):
            other = copy.deepcopy(layer).to(torch.float64 if shift % 2 else torch.float32)
            with torch.no_grad():
                other.parametrizations.weight.original.add_(shift)
            given = x.to(other.weight.dtype)
            expected = given @ lc.fold(other).weight.T + other.bias
            assert torch.allclose(other(given), expected, atol=1e-5), shift
            del other


def test_weights_are_normalized_once_while_somebody_looks_on() -> None:
    layer = lc.spectral_norm(nn.Linear(3, 3)).eval()
    with observing(layer):
        assert layer.weight is layer.weight
        before = layer.weight
        with torch.no_grad():
            layer.parametrizations.weight.original.mul_(torch.tensor([[1.0], [2.0], [3.0]]))
        assert not torch.equal(layer.weight, before)
    assert layer.weight is not layer.weight

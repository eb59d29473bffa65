"""torch.compile: which methods it serves, and what it changes (nothing but rounding)."""

import copy

import pytest
import torch
from torch import nn

from lowcurve import convert
from lowcurve.layers.normalized import normalized_layers
from lowcurve.methods import build
from lowcurve.training.step import training_step


@pytest.mark.parametrize("method", ["relu", "lcnn"])
def test_a_compiled_network_takes_the_same_steps_and_is_compiled_once(method: str) -> None:
    torch.manual_seed(0)
    plain = build(method, "convnet", (1, 8, 8), 10, width=4).train()
    compiled = copy.deepcopy(plain)
    compiled.compile(backend="eager")  # what is traced counts here, not what a backend makes of it
    x, y = torch.rand(8, 1, 8, 8), torch.arange(8)
    torch._dynamo.reset()
    for step in range(3):
        with torch._dynamo.config.patch(error_on_recompile=step > 0):
            for net in (plain, compiled):
                training_step(net, x, y, method)
        for mine, theirs in zip(compiled.parameters(), plain.parameters(), strict=True):
            assert torch.allclose(mine.grad, theirs.grad, rtol=1e-3, atol=1e-5)
        with torch.no_grad():
            for parameter in (*plain.parameters(), *compiled.parameters()):
                parameter -= 0.01 * parameter.grad
    for (name, mine), theirs in zip(compiled.named_buffers(), plain.buffers(), strict=True):
        if not name.endswith(("left", "right", "slope")):  # of nearly equal norms rounding chooses one
            assert torch.allclose(mine, theirs, rtol=1e-3, atol=1e-4), name
    for (name, _, mine), (_, _, theirs) in zip(normalized_layers(compiled), normalized_layers(plain), strict=True):
        norms = [float(spectral.sigma(spectral.given()).detach()) for spectral in (mine, theirs)]
        assert norms[0] == pytest.approx(norms[1], rel=1e-3), name


def test_gradients_of_a_compiled_network_with_batch_norm() -> None:
    """Compiled backwards once read the running variance that the forward had moved: no numbers at all."""
    torch.manual_seed(0)
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10)]
    x, y = torch.rand(8, 1, 8, 8), torch.arange(8)
    plain, _ = convert(nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), *head), x, init_gamma=0.5)
    compiled = copy.deepcopy(plain.train())
    torch._dynamo.reset()
    compiled.compile(backend="aot_eager")
    for _ in range(3):
        for net in (plain, compiled):
            training_step(net, x, y, "lcnn")
        for mine, theirs in zip(compiled.parameters(), plain.parameters(), strict=True):
            assert torch.allclose(mine.grad, theirs.grad, rtol=1e-3, atol=1e-6)
        with torch.no_grad():
            for parameter in (*plain.parameters(), *compiled.parameters()):
                parameter -= 0.1 * parameter.grad

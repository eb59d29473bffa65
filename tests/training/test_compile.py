"""torch.compile: which methods it serves, and what it changes (nothing but rounding)."""

import copy

import pytest
import torch

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
    for mine, theirs in zip(compiled.buffers(), plain.buffers(), strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-3, atol=1e-4)

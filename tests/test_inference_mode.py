"""Public functions inside `torch.inference_mode`, where Lightning and others validate: same numbers, live weights."""

import pytest
import torch
from torch import nn

import lowcurve as lc

GENERATOR = torch.Generator().manual_seed(0)
X, Y = torch.rand(4, 1, 8, 8, generator=GENERATOR), torch.arange(4)
CALLS = {
    "curvature": lambda net, x, y: lc.curvature(net, x, y).curvature,
    "gradient_stability": lambda net, x, y: lc.gradient_stability(net, x, y, [0.1], samples=1).mean,
    "local_linearity": lambda net, x, y: lc.local_linearity(net, x, y, [0.1], samples=1).mean,
    "attack": lambda net, x, y: lc.attack(net, x, y, "pgd", eps=0.1, steps=2).adversarial,
    "certify": lambda net, x, y: lc.certify(net, x, y).radius,
    "certify locally": lambda net, x, y: lc.certify(net, x, y, local=True).radius,
    "explanation_bound": lambda net, x, y: lc.explanation_bound(net, x, y, 0.1).change,
    "bounds": lambda net, x, y: lc.bounds(net, (1, 8, 8)).margin_lipschitz,
}


def plain() -> nn.Module:
    torch.manual_seed(0)
    return lc.MODELS["mlp"](num_classes=4, in_channels=1, image_size=8, width=8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("call", CALLS)
def test_numbers_are_the_same(call, dtype):
    model = lc.convert(plain(), X)[0].to(dtype).eval()
    x = X.to(dtype)
    expected = CALLS[call](model, x, Y)
    with torch.inference_mode():
        found = CALLS[call](model, x.clone(), Y.clone())  # made there: tensors that no graph can hold
    torch.testing.assert_close(found, expected)
    model.train()(x).sum().backward()


def test_surgery_there_leaves_weights_that_can_be_trained():
    net = plain()
    with torch.inference_mode():
        model, _ = lc.convert(net, X.clone())
        folded = lc.fold(model)
    assert not any(t.is_inference() for m in (model, folded) for t in (*m.parameters(), *m.buffers()))
    for one in (model, folded):
        one.train()(X).sum().backward()
    torch.testing.assert_close(folded.eval()(X), model.eval()(X))

import math

import pytest
import torch
from torch import nn

from lowcurve.errors import UserError
from lowcurve.models import MODELS
from lowcurve.models.resnet import BasicBlock


def kinds(model: nn.Module, *types: type) -> int:
    return sum(isinstance(module, types) for module in model.modules())


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("channels", "size"), [(3, 32), (1, 8), (2, (8, 12))])
def test_logits_of_every_shape(name, channels, size):
    model = MODELS[name](num_classes=7, in_channels=channels, width=4, image_size=size).eval()
    height, width = (size, size) if isinstance(size, int) else size
    assert model(torch.rand(2, channels, height, width)).shape == (2, 7)


# Layers as the released code has them: (convolutions, linear, batch norms, activations).
COUNTS = {
    "resnet18": (20, 1, 20, 17),
    "resnet34": (36, 1, 36, 33),
    "vgg11": (10, 1, 10, 10),
    "mlp": (0, 4, 0, 3),
    "convnet": (5, 1, 0, 5),
    "lipnet": (0, 1, 0, 5),
    "vit": (3, 17, 0, 6),
}


@pytest.mark.parametrize("name", MODELS)
def test_layer_counts(name):
    model = MODELS[name](width=4)
    counts = tuple(kinds(model, kind) for kind in (nn.Conv2d, nn.Linear, nn.BatchNorm2d, nn.ReLU))
    assert counts == COUNTS[name]


def test_resnet18_has_the_textbook_parameter_count():
    # The size that the literature gives for the CIFAR ResNet-18 with 1×1 shortcuts and 10 classes.
    assert sum(p.numel() for p in MODELS["resnet18"](residual="sum").parameters()) == 11_173_962


def test_activation_factory_is_called_once_per_site():
    made = []

    def activation():
        made.append(nn.Softplus(10))
        return made[-1]

    model = MODELS["resnet18"](width=2, activation=activation)
    assert len(made) == 17
    assert kinds(model, nn.Softplus) == 17 and kinds(model, nn.ReLU) == 0


@pytest.mark.parametrize(("residual", "stride"), [("mean", 1), ("mean", 2), ("sum", 1), ("sum", 2)])
def test_residual_join_by_hand(residual, stride):
    block = BasicBlock(3, 3 * stride, stride, residual, nn.Tanh).eval()
    x = torch.randn(2, 3, 6, 6)
    if residual == "mean":
        y = x / math.sqrt(2)
        joined = 0.5 * (block.body(y) + block.shortcut(y))
    else:
        joined = block.body(x) + block.shortcut(x)
    torch.testing.assert_close(block(x), joined.tanh())
    assert isinstance(block.shortcut, nn.Identity) == (stride == 1)


def test_mlp_takes_flat_vectors():
    assert MODELS["mlp"](num_classes=2, in_channels=5, width=3, image_size=())(torch.rand(4, 5)).shape == (
        4,
        2,
    )


def test_convnet_starts_with_maps_that_keep_norms():
    model = MODELS["convnet"](in_channels=3, width=8, image_size=8)
    x = torch.randn(4, 3, 8, 8)
    for layer in (model[1], model[3].body[0]):  # more channels out than in, or as many: an isometry
        y = layer(x)
        torch.testing.assert_close(y.flatten(1).norm(dim=1), x.flatten(1).norm(dim=1))
        x = y
    torch.testing.assert_close(model[-1].weight @ model[-1].weight.T, torch.eye(10), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("resnet18", {"residual": "man"}, "did you mean 'mean'"),
        ("convnet", {"image_size": 2}, "at least 4 pixels"),
        ("mlp", {"image_size": (1, 2, 3)}, "image_size must be"),
    ],
)
def test_mistakes_are_named(name, arguments, words):
    with pytest.raises(UserError, match=words):
        MODELS[name](width=2, **arguments)

"""Models by other people, and hand-written ones with awkward forwards: what the surgery must cope with."""

from collections.abc import Callable
from importlib.util import find_spec

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lowcurve.sources import imported

if find_spec("transformers"):
    imported("transformers")  # also where there is a torchvision that does not fit
IMAGE = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
SMALL = IMAGE[:, :, :8, :8].contiguous()


def hf_resnet() -> nn.Module:
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=5)
    return ResNetForImageClassification(config)


def hf_convnext() -> nn.Module:
    from transformers import ConvNextConfig, ConvNextForImageClassification

    config = ConvNextConfig(hidden_sizes=[8, 16], depths=[1, 1], num_stages=2, num_labels=5, layer_scale_init_value=0.5)
    return ConvNextForImageClassification(config)


def hf_vit() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=32,
        patch_size=8,
        num_labels=5,
    )
    return ViTForImageClassification(config)


def hf_mobilenet() -> nn.Module:
    from transformers import MobileNetV2Config, MobileNetV2ForImageClassification

    config = MobileNetV2Config(depth_multiplier=0.25, min_depth=4, num_labels=5, image_size=32)
    return MobileNetV2ForImageClassification(config)


def hf_regnet() -> nn.Module:
    from transformers import RegNetConfig, RegNetForImageClassification

    config = RegNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], groups_width=4, num_labels=5)
    return RegNetForImageClassification(config)


def hf_swin() -> nn.Module:
    from transformers import SwinConfig, SwinForImageClassification

    config = SwinConfig(embed_dim=8, depths=[1, 1], num_heads=[2, 2], image_size=32, window_size=4, num_labels=5)
    return SwinForImageClassification(config)


def hf_poolformer() -> nn.Module:
    from transformers import PoolFormerConfig, PoolFormerForImageClassification

    config = PoolFormerConfig(
        hidden_sizes=[8, 16],
        depths=[1, 1],
        num_encoder_blocks=2,
        patch_sizes=[7, 3],
        strides=[4, 2],
        padding=[2, 1],
        drop_path_rate=0.0,
        num_labels=5,
    )
    return PoolFormerForImageClassification(config)


def pcv_resnet() -> nn.Module:
    from pytorchcv.models.resnet_cifar import CIFARResNet

    return CIFARResNet(channels=[[4], [4], [8]], init_block_channels=4, bottleneck=False, num_classes=5)


def pcv_preresnet() -> nn.Module:
    from pytorchcv.models.preresnet_cifar import CIFARPreResNet

    return CIFARPreResNet(channels=[[4], [8], [8]], init_block_channels=4, bottleneck=True, num_classes=5)


def pcv_wrn() -> nn.Module:
    from pytorchcv.models.wrn_cifar import CIFARWRN

    return CIFARWRN(channels=[[8], [8], [16]], init_block_channels=4, num_classes=5)


def pcv_densenet() -> nn.Module:
    from pytorchcv.models.densenet_cifar import CIFARDenseNet

    return CIFARDenseNet(channels=[[8, 12], [10], [9]], init_block_channels=4, bottleneck=True, num_classes=5)


def pcv_seresnet() -> nn.Module:
    from pytorchcv.models.seresnet_cifar import CIFARSEResNet

    return CIFARSEResNet(channels=[[16], [16], [16]], init_block_channels=16, bottleneck=False, num_classes=5)


class FunctionalSpellings(nn.Module):
    """Every spelling of ReLU, in place or not, and functions with arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(3, 3, 3, padding=1) for _ in range(7))
        self.head = nn.Linear(3, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.convs[0](x))
        x = torch.relu(self.convs[1](x))
        x = self.convs[2](x).relu()
        x = self.convs[3](x).relu_()
        x = F.relu(self.convs[4](x), inplace=True)
        x = F.leaky_relu(self.convs[5](x), 0.2)
        x = F.dropout(x, 0.25, self.training)
        x = F.leaky_relu(self.convs[6](x), negative_slope=0.3)
        return self.head(x.mean((2, 3)))


class SharedInBlock(nn.Module):
    """The classic residual block: one in-place ReLU, used three times."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.conv1, self.bn1 = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.conv2, self.bn2 = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.relu = nn.ReLU(inplace=True)
        self.head = nn.Linear(4, 5)
        self.config = {"depth": 2}

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.stem(x))
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return self.head(self.relu(x + y).mean((2, 3)))


def shared_in_sequential() -> nn.Module:
    """One activation object for all layers, as the paper's released VGG has it, through nested Sequentials."""
    act = nn.ReLU()
    inner = nn.Sequential(nn.Conv2d(4, 4, 3, stride=2), nn.BatchNorm2d(4), act)
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 4, 3), act), nn.Sequential(inner, nn.Sequential(act)), nn.Flatten(), nn.Linear(16, 5)
    )


class InPlaceAliases(nn.Module):
    """Reads tensors after they were changed in place: by a function whose result is dropped, and by a module."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 5)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc1(x)
        F.relu_(x)
        y = self.fc2(x)
        z = self.relu(y)
        return self.fc3(z + y)


class Untraceable(nn.Module):
    """Branches on data and loops on shapes, which torch.fx cannot follow; its activations are modules."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.Softplus()) for _ in range(3))
        self.head = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        if float(x.sum()) > 1e6:
            raise ValueError("too bright")
        for layer in self.layers:
            for _ in range(min(len(x), 2)):
                x = layer(x)
        return self.head(x)


class FunctionAttribute(nn.Module):
    """Holds its activation as a function, and its forward has optional arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.act = F.hardswish
        self.fc1, self.fc2 = nn.Linear(6, 6), nn.Linear(6, 5)

    def forward(self, x: Tensor, mask: Tensor | None = None, scale: float = 1.0) -> Tensor:
        x = self.act(self.fc1(x))
        if mask is not None:
            x = x * mask
        return self.fc2(x) * scale


class OptionalArguments(nn.Module):
    """Branches on an argument that is None, in a forward that must be rewritten; returns a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.block = _MaskedBlock()
        self.head = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        features = self.block(x, scale=2.0)
        return {"logits": self.head(self.block(features, mask=None))}


class _MaskedBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)

    def forward(self, x: Tensor, mask: Tensor | None = None, scale: float = 2.0) -> Tensor:
        if mask is not None:
            x = x * mask
        return F.elu(F.silu(self.fc(x))) * scale


class TorchTransformer(nn.Module):
    """torch.nn's own encoder layer, whose inference path is fused and whose activation is a function."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x).mean(1))


class HandWrittenAttention(nn.Module):
    """Attention by matrix products and softmax, beside an MLP with a functional GELU."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.mlp, self.head = _Mixer(), _FeedForward(), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)
        return self.head((x + self.mlp(x)).mean(1))


class _Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return (q @ k.transpose(-1, -2)).softmax(-1) @ v


class _FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


def conv1d_net() -> nn.Module:
    """Sequences: Conv1d with dilation, groups and 'same' padding, BatchNorm1d."""
    return nn.Sequential(
        nn.Conv1d(3, 4, 3, padding="same", dilation=2),
        nn.BatchNorm1d(4),
        nn.ELU(),
        nn.Conv1d(4, 4, 3, groups=2, stride=2, padding=1, padding_mode="circular"),
        nn.BatchNorm1d(4),
        nn.LeakyReLU(0.2),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Linear(4, 5),
    )


VECTOR = torch.rand(4, 6, generator=torch.Generator().manual_seed(1))
TOKENS = torch.rand(2, 4, 8, generator=torch.Generator().manual_seed(2))
SEQUENCE = torch.rand(4, 3, 12, generator=torch.Generator().manual_seed(3))

# name -> (factory, example, number of activation sites, whether every activation is one that β → ∞ restores)
ZOO: dict[str, tuple[Callable[[], nn.Module], Tensor, int, bool]] = {
    "transformers ResNet": (hf_resnet, IMAGE, 5, True),
    "transformers ConvNeXt": (hf_convnext, IMAGE, 2, False),
    "transformers ViT": (hf_vit, IMAGE, 2, False),
    "transformers MobileNetV2": (hf_mobilenet, IMAGE, 35, True),
    "transformers RegNet": (hf_regnet, IMAGE, 9, True),
    "transformers Swin": (hf_swin, IMAGE, 2, False),
    "transformers PoolFormer": (hf_poolformer, IMAGE, 2, False),
    "pytorchcv CIFAR ResNet": (pcv_resnet, IMAGE, 7, True),
    "pytorchcv CIFAR PreResNet": (pcv_preresnet, IMAGE, 10, True),
    "pytorchcv CIFAR WRN": (pcv_wrn, IMAGE, 7, True),
    "pytorchcv CIFAR DenseNet": (pcv_densenet, IMAGE, 11, True),
    "pytorchcv CIFAR SE-ResNet": (pcv_seresnet, IMAGE, 10, True),
    "functional spellings": (FunctionalSpellings, SMALL, 7, True),
    "shared in a block": (SharedInBlock, SMALL, 3, True),
    "shared in Sequentials": (shared_in_sequential, SMALL, 3, True),
    "in-place aliases": (InPlaceAliases, VECTOR, 2, True),
    "untraceable forward": (Untraceable, VECTOR, 3, False),
    "function attribute": (FunctionAttribute, VECTOR, 1, False),
    "optional arguments": (OptionalArguments, VECTOR, 2, False),
    "torch.nn transformer": (TorchTransformer, TOKENS, 2, True),
    "hand-written attention": (HandWrittenAttention, TOKENS, 1, False),
    "1d convolutions": (conv1d_net, SEQUENCE, 2, False),
}


def logits(output: object) -> Tensor:
    """Return the logits of a model's output, whatever wraps them."""
    return output if isinstance(output, Tensor) else output["logits"]  # type: ignore[index]


@torch.no_grad()
def as_if_trained(model: nn.Module, seed: int = 0) -> nn.Module:
    """Give batch norms statistics and weights that are nothing special, as training would; return in eval mode."""
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.running_mean.normal_(0, 0.3, generator=generator)
            module.running_var.uniform_(0.3, 2, generator=generator)
            module.weight.uniform_(0.5, 1.5, generator=generator)
            module.bias.normal_(0, 0.3, generator=generator)
    return model.eval()

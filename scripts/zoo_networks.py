"""Which networks of others does the zoo have? Small variants of timm, transformers and pytorchcv, with new weights."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from lowcurve.sources import imported

CLASSES = 10


@dataclass(frozen=True)
class Entry:
    """A network: the library, its name there, and the side of the images."""

    library: str
    name: str
    side: int
    options: dict[str, Any] = field(default_factory=dict)

    def make(self) -> nn.Module:
        """Return it with new weights of a fixed seed, in eval mode, batch norms as after some training."""
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(0)
            return settled(MAKERS[self.library](self).eval())


def _timm(entry: Entry) -> nn.Module:
    return imported("timm").create_model(entry.name, pretrained=False, num_classes=CLASSES, **entry.options)


def _transformers(entry: Entry) -> nn.Module:
    library = imported("transformers")
    config = getattr(library, f"{entry.name}Config")(num_labels=CLASSES, **entry.options)
    return getattr(library, f"{entry.name}ForImageClassification")(config)


def _pytorchcv(entry: Entry) -> nn.Module:
    from pytorchcv.model_provider import get_model

    return get_model(entry.name, pretrained=False, num_classes=CLASSES, **entry.options)


MAKERS: dict[str, Callable[[Entry], nn.Module]] = {
    "timm": _timm,
    "transformers": _transformers,
    "pytorchcv": _pytorchcv,
}

_TIMM = (
    "test_resnet", "test_vit", "test_efficientnet", "test_convnext", "test_byobnet", "test_mambaout", "test_nfnet",
    "tinynet_e", "lcnet_035", "mobilenetv3_small_050", "mobilenetv2_035", "mnasnet_small", "starnet_s050",
    "ghostnet_050", "resnet10t", "regnetx_002", "regnety_002", "efficientnet_lite0", "convnext_atto",
    "convnextv2_atto", "nf_regnet_b0", "resnet18", "repvgg_a0", "mobileone_s0", "dla46_c", "hgnetv2_b0",
    "mobilenetv4_conv_small_035", "densenet121", "rexnet_100",
)  # fmt: skip
_TIMM_WITH_SIZE = {  # networks whose layers depend on the size of images
    "vit_tiny_patch16_224": {"depth": 2}, "deit_tiny_patch16_224": {"depth": 2}, "cait_xxs24_224": {"depth": 2},
    "mixer_s32_224": {}, "gmlp_ti16_224": {}, "resmlp_12_224": {},
    "xcit_nano_12_p16_224": {"depth": 2}, "swin_tiny_patch4_window7_224": {"depths": (1, 1, 1, 1), "window_size": 2},
}  # fmt: skip
_TIMM_AT_64 = {
    "edgenext_xx_small": {}, "mobilevit_xxs": {}, "pvt_v2_b0": {}, "poolformer_s12": {}, "fastvit_t8": {},
    "shvit_s1": {}, "inception_next_atto": {}, "efficientvit_b0": {}, "hrnet_w18_small": {},
    "davit_tiny": {"depths": (1, 1, 1, 1)},
}  # fmt: skip
_DEPTHS = {"depths": [1, 1], "hidden_sizes": [8, 16]}
_ATTENTION = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
_TRANSFORMERS = {
    "ResNet": {"embedding_size": 8, "layer_type": "basic", **_DEPTHS},
    "RegNet": {"embedding_size": 8, "groups_width": 4, **_DEPTHS},
    "ConvNext": {"num_stages": 2, "layer_scale_init_value": 0.5, **_DEPTHS},
    "ConvNextV2": {"num_stages": 2, **_DEPTHS},
    "MobileNetV1": {"depth_multiplier": 0.25, "min_depth": 4, "image_size": 32},
    "MobileNetV2": {"depth_multiplier": 0.25, "min_depth": 4, "image_size": 32},
    "EfficientNet": {"width_coefficient": 0.1, "depth_coefficient": 0.1, "hidden_dim": 128, "image_size": 32},
    "ViT": {"image_size": 32, "patch_size": 8, **_ATTENTION},
    "DeiT": {"image_size": 32, "patch_size": 8, **_ATTENTION},
    "Beit": {"image_size": 32, "patch_size": 8, **_ATTENTION},
    "Swin": {"embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2], "image_size": 32, "window_size": 4},
    "Dinov2": {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 32, "patch_size": 8},
    "PoolFormer": {
        "num_encoder_blocks": 2, "patch_sizes": [7, 3], "strides": [4, 2], "padding": [2, 1], "drop_path_rate": 0.0,
        **_DEPTHS,
    },
    "Bit": {"embedding_size": 32, "depths": [1, 1], "hidden_sizes": [128, 256]},
    "MobileViT": {
        "image_size": 64, "hidden_sizes": [16, 24, 32], "neck_hidden_sizes": [8, 8, 16, 24, 32, 40, 64],
        "num_attention_heads": 2,
    },
    "PvtV2": {"hidden_sizes": [8, 16, 16, 16], "num_attention_heads": [1] * 4, "depths": [1] * 4, "image_size": 32},
    "SwiftFormer": {"embed_dims": [8, 16, 16, 16], "depths": [1] * 4, "image_size": 64},
    "Levit": {
        "hidden_sizes": [16, 24, 32], "num_attention_heads": [2] * 3, "depths": [1] * 3, "key_dim": [8] * 3,
        "image_size": 64,
    },
    "MobileViTV2": {"width_multiplier": 0.25, "image_size": 64},
    "Dinov2WithRegisters": {
        "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 32, "patch_size": 8,
    },
    "Siglip": {"vision_config": {"image_size": 32, "patch_size": 8, **_ATTENTION}},
    "HGNetV2": {},
    "TextNet": {},
    "FocalNet": {"embed_dim": 8, "depths": [1, 1], "image_size": 32, "focal_levels": [2, 2], "focal_windows": [3, 3]},
}  # fmt: skip
_HIERA = {
    "image_size": [32, 32], "embed_dim": 8, "depths": [1, 1], "num_heads": [1, 2], "num_query_pool": 1,
    "masked_unit_size": [4, 4], "masked_unit_attention": [True, False],
}  # fmt: skip
_PYTORCHCV = (
    "resnet20_cifar10", "preresnet20_cifar10", "seresnet20_cifar10", "diaresnet20_cifar10", "nin_cifar10",
    "rir_cifar10", "shakeshakeresnet20_2x16d_cifar10", "densenet40_k12_cifar10", "pyramidnet110_a48_cifar10",
)  # fmt: skip

ENTRIES = [
    *(Entry("transformers", name, options.get("image_size", 32), options) for name, options in _TRANSFORMERS.items()),
    Entry("transformers", "Hiera", 32, _HIERA),
    *(Entry("pytorchcv", name, 32) for name in _PYTORCHCV),
    *(Entry("timm", name, 32, {"img_size": 32, **options}) for name, options in _TIMM_WITH_SIZE.items()),
    *(Entry("timm", name, 32) for name in _TIMM),
    *(Entry("timm", name, 64, options) for name, options in _TIMM_AT_64.items()),
]


@torch.no_grad()
def settled(model: nn.Module) -> nn.Module:
    """Give batch norms statistics that are nothing special."""
    generator = torch.Generator().manual_seed(0)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is not None:
            module.running_mean.normal_(0, 0.1, generator=generator)
            module.running_var.uniform_(0.5, 1.5, generator=generator)
    return model

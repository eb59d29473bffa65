"""Which operations do random networks consist of? A table: how each is written, for which inputs, with which settings.

A template is the constructor of a module, or an expression of the value {x} (and {other}). Braces are filled with
the node's settings and with what is known of its input: {channels}, {features} (the last dimension), {sample} (the
shape of one sample) and {dims} (spatial dimensions). The first value of every setting is the simplest one, to which
`shrink` returns.
"""

from dataclasses import dataclass
from typing import Any

FLAT, LINE, IMAGE = 1, 2, 3  # ranks of one sample: (C,), (C, L), (C, H, W)
ALL = (FLAT, LINE, IMAGE)
SPATIAL = (LINE, IMAGE)


@dataclass(frozen=True)
class Operation:
    """One way to compute a value from one or two others."""

    template: str
    ranks: tuple[int, ...]
    settings: dict[str, tuple[Any, ...]]

    @property
    def is_module(self) -> bool:
        """Whether the template constructs a module, which then is called."""
        return "{x}" not in self.template

    @property
    def arity(self) -> int:
        """How many values are read."""
        return 1 + ("{other}" in self.template)


def _operation(template: str, ranks: tuple[int, ...] = ALL, **settings: tuple[Any, ...]) -> Operation:
    return Operation(template, ranks, settings)


FLAGS = (False, True)

LINEAR = {
    "linear": _operation("nn.Linear({features}, {out}, bias={bias})", out=(3, 2, 4, 8), bias=FLAGS),
    "conv": _operation(
        "nn.Conv{dims}d({channels}, {out}, {kernel}, stride={stride}, padding={padding!r}, dilation={dilation}, "
        "groups={groups}, bias={bias}, padding_mode={mode!r})",
        SPATIAL,
        out=(2, 4, 6),
        kernel=(1, 2, 3),
        stride=(1, 2, 3),
        padding=(0, 1, 2, "same"),
        dilation=(1, 2),
        groups=(1, 2),
        bias=FLAGS,
        mode=("zeros", "zeros", "circular", "reflect", "replicate"),
    ),
}

POOLING = {
    "avgpool": _operation(
        "nn.AvgPool{dims}d({kernel}, {stride}, {padding}, ceil_mode={ceil}, count_include_pad={count})",
        SPATIAL,
        kernel=(2, 3),
        stride=(None, 1, 2),
        padding=(0, 1),
        ceil=FLAGS,
        count=FLAGS,
    ),
    "divided": _operation("nn.AvgPool2d(2, divisor_override={divisor})", (IMAGE,), divisor=(4, 1, 7)),
    "maxpool": _operation(
        "nn.MaxPool{dims}d({kernel}, {stride}, {padding}, {dilation}, ceil_mode={ceil})",
        SPATIAL,
        kernel=(2, 3),
        stride=(None, 1, 2),
        padding=(0, 1),
        dilation=(1, 2),
        ceil=FLAGS,
    ),
    "adaptive": _operation("nn.AdaptiveAvgPool{dims}d({size})", SPATIAL, size=(1, 2, 3)),
    "adaptivemax": _operation("nn.AdaptiveMaxPool{dims}d({size})", SPATIAL, size=(1, 2)),
}

# Modules whose `inplace` argument a node may switch on.
RECTIFIERS = {
    "relu": _operation("nn.ReLU()"),
    "leaky": _operation("nn.LeakyReLU({slope})", slope=(0.01, 0.0, 0.5, 1.0, 2.0, -0.5)),
    "relu6": _operation("nn.ReLU6()"),
    "hardtanh": _operation("nn.Hardtanh({low}, {high})", low=(-1.0, -0.1, 0.2), high=(1.0, 0.3)),
    "elu": _operation("nn.ELU({alpha})", alpha=(1.0, 0.5, 5.0, 0.0, -0.7)),
    "celu": _operation("nn.CELU({alpha})", alpha=(1.0, 0.3, -2.0)),
    "selu": _operation("nn.SELU()"),
    "silu": _operation("nn.SiLU()"),
    "mish": _operation("nn.Mish()"),
    "hardswish": _operation("nn.Hardswish()"),
    "threshold": _operation("nn.Threshold({threshold}, {value})", threshold=(0.0, 0.3), value=(0.0, -1.0)),
}

SMOOTH = {
    "softplus": _operation(
        "nn.Softplus({beta}, {threshold})", beta=(1, 0.3, 20.0, -1.0), threshold=(20.0, 100.0, 5.0, 0.0, -3.0)
    ),
    "tanh": _operation("nn.Tanh()"),
    "sigmoid": _operation("nn.Sigmoid()"),
    "gelu": _operation("nn.GELU({form!r})", form=("none", "tanh")),
    "softsign": _operation("nn.Softsign()"),
    "logsigmoid": _operation("nn.LogSigmoid()"),
    "hardsigmoid": _operation("nn.Hardsigmoid()"),
    "softshrink": _operation("nn.Softshrink({value})", value=(0.5, 0.01)),
    "prelu": _operation("nn.PReLU()"),
    "centered": _operation("lc.CenteredSoftplus({beta})", beta=(1.0, 0.02, 5.0, 300.0)),
    "learned gelu": _operation("lc.LearnedGELU({beta}, {form!r})", beta=(1.0, 0.02, 300.0), form=("none", "tanh")),
    "learned silu": _operation("lc.LearnedSiLU({beta})", beta=(1.0, 0.02, 300.0)),
}

FUNCTIONS = {
    "F.relu": _operation("F.relu({x}, inplace={inplace})", inplace=FLAGS),
    "F.elu": _operation("F.elu({x}, {alpha}, inplace={inplace})", alpha=(1.0, 2.0), inplace=FLAGS),
    "F.leaky_relu": _operation("F.leaky_relu({x}, {slope})", slope=(0.01, 0.3)),
    "F.softplus": _operation("F.softplus({x}, beta={beta}, threshold={threshold})", beta=(1, 5), threshold=(20, 1)),
    "F.gelu": _operation("F.gelu({x})"),
    "relu_": _operation("{x}.relu_()"),
    "clamp": _operation("{x}.clamp(min={low})", low=(0.0, -0.5)),
    "tanh()": _operation("torch.tanh({x})"),
    "sin": _operation("torch.sin({x})"),
    "F.avg_pool2d": _operation("F.avg_pool2d({x}, 2)", (IMAGE,)),
    "F.max_pool2d": _operation("F.max_pool2d({x}, 2)", (IMAGE,)),
}

NORMS = {
    "batchnorm": _operation(
        "nn.BatchNorm{plane}d({channels}, eps={eps}, momentum={momentum}, affine={affine}, "
        "track_running_stats={track})",
        affine=FLAGS,
        eps=(1e-5, 1e-3, 1.0),
        momentum=(0.1, None, 0.9),
        track=(True, True, True, False),
    ),
    "lipschitz": _operation(
        "lc.LipschitzBatchNorm{plane}d({channels}, init_gamma={gamma}, affine={affine})",
        affine=FLAGS,
        gamma=(10.0, 1.0, 0.05),
    ),
    "layernorm": _operation("nn.LayerNorm({sample}, elementwise_affine={affine})", affine=FLAGS),
    "groupnorm": _operation("nn.GroupNorm({groups}, {channels}, affine={affine})", groups=(1, 2), affine=FLAGS),
    "instancenorm": _operation(
        "nn.InstanceNorm{dims}d({channels}, affine={affine}, track_running_stats={track})",
        SPATIAL,
        affine=FLAGS,
        track=FLAGS,
    ),
    "chain": _operation(
        "Chain({norm}BatchNorm{plane}d({channels}), {activation})",
        norm=("nn.", "lc.Lipschitz"),
        activation=("lc.CenteredSoftplus(3.0)", "nn.Softplus()", "nn.ReLU()"),
    ),
}

BLOCKS = {
    "maxmin": _operation("MaxMin()"),
    "orthogonal": _operation(
        "AlmostOrthogonal2d({channels}, {out}, {kernel})", (IMAGE,), out=(2, 4, 3), kernel=(1, 3, 5)
    ),
    "block": _operation(
        "lc.LipschitzResidual({features}, {hidden}, {activation})",
        hidden=(3, 1, 8),
        activation=(
            "lc.CenteredSoftplus(1.0)",
            "lc.CenteredSoftplus(30.0)",
            "nn.ReLU()",
            "nn.Tanh()",
            "nn.LeakyReLU(0.2)",
        ),
    ),
    "block2d": _operation(
        "lc.LipschitzResidual2d({channels}, {hidden}, {kernel}, {activation}, {mode!r})",
        (IMAGE,),
        hidden=(2, 1, 5),
        kernel=(1, 3, 5),
        activation=("lc.CenteredSoftplus(1.0)", "lc.CenteredSoftplus(0.1)", "nn.ReLU()", "nn.Softplus()"),
        mode=("zeros", "circular"),
    ),
}

SHAPES = {
    "flatten": _operation("nn.Flatten()", SPATIAL),
    "flatten()": _operation("torch.flatten({x}, 1)", SPATIAL),
    "view": _operation("{x}.flatten(1)", SPATIAL),
    "identity": _operation("nn.Identity()"),
    "dropout": _operation("nn.Dropout(0.0)"),
    "transposed": _operation("{x}.transpose(1, 2).contiguous().transpose(1, 2)", SPATIAL),
    "channels_last": _operation("{x}.to(memory_format=torch.channels_last)", (IMAGE,)),
    "slice": _operation("{x}[:, 1:]"),
    "unshuffle": _operation("nn.PixelUnshuffle(2)", (IMAGE,)),
    "zeropad": _operation("nn.ZeroPad{dims}d({padding})", SPATIAL, padding=(1, 0, 2, -1)),
}

ARITHMETIC = {
    "add": _operation("{x} + {other}"),
    "average": _operation("({x} + {other}) / 2"),
    "subtract": _operation("{x} - {other}"),
    "product": _operation("{x} * {other}"),
    "cat": _operation("torch.cat([{x}, {other}], dim=1)"),
    "add_": _operation("{x}.add_({other})"),
    "twice": _operation("{x} + {x}"),
    "scale": _operation("{factor} * {x}", factor=(2.0, -0.5, 0.0, 1e4)),
    "shift": _operation("{x} + {shift}", shift=(1.0, -0.3, 1e4)),
    "offset": _operation("({x} + 16384.0) + (-16384.0)"),
}

OPERATIONS: dict[str, Operation] = {
    **LINEAR, **POOLING, **RECTIFIERS, **SMOOTH, **FUNCTIONS, **NORMS, **BLOCKS, **SHAPES, **ARITHMETIC,
}  # fmt: skip

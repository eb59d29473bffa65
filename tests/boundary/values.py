"""Which values are nonsense? Tables by kind of argument, for calls and for command lines."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.boundary.subjects import images, labels

NAN, INFINITY = math.nan, math.inf
HUGE = 2**70

# Arguments of functions. `None` is added by `functions` where a parameter is not optional.
ALIENS: list[Any] = [object(), 1j, b"bytes", {"a": 1}, {1}, lambda: 0, int, ...]
WHOLE: list[Any] = [*ALIENS, -1, 10.7, 1.0, NAN, INFINITY, -INFINITY, HUGE, -HUGE, True, "3", "", [1], torch.rand(2)]
NUMBER: list[Any] = [*ALIENS, -1.0, NAN, INFINITY, -INFINITY, True, "1", "nan", "", [[1.0], 2], torch.tensor(NAN)]
FLAG: list[Any] = [*ALIENS, "yes", "", 2, 0.5, NAN, [], torch.rand(2)]
NAME: list[Any] = [*ALIENS, "", "no such thing", "²", 3.5, NAN, ["a"], "\0", "x" * 5000]
NUMBERS: list[Any] = [
    *ALIENS,
    [],
    [NAN],
    [INFINITY],
    [-1.0],
    ["a"],
    [None],
    "abc",
    [[1.0]],
    [1j],
    torch.rand(2, 2),
    [-0.1, 0.1],
]
SIZE: list[Any] = [
    *ALIENS,
    (-3, 3),
    (0, 3),
    (3.5, 3),
    ("3", 3),
    (NAN, 3),
    (HUGE, 3),
    (1,) * 9,
    "3,3",
    2.5,
    NAN,
    (None,),
    True,
]
OTHER: list[Any] = [*ALIENS, 3, 2.5, NAN, [], torch.rand(2)]
PATH: list[Any] = [*OTHER, "", " ", "\0", "a\0b"]

TENSORS: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "a list": lambda: images().tolist(),
    "an array": lambda: images().numpy(),
    "text": lambda: "x",
    "one sample": lambda: images()[0, 0, 0],
    "a number": lambda: torch.tensor(0.5),
    "whole numbers": lambda: images().mul(255).long(),
    "bytes": lambda: images().mul(255).byte(),
    "bools": lambda: images() > 0.5,
    "complex numbers": lambda: images().to(torch.complex64),
    "other channels": lambda: images().repeat(1, 3, 1, 1),
    "other size": lambda: images()[..., 1:],
    "no memory": lambda: images().to("meta"),
    "sparse": lambda: images().to_sparse(),
    "quantized": lambda: torch.quantize_per_tensor(images(), 0.1, 0, torch.quint8),
    "nested": lambda: torch.nested.nested_tensor([images()[0], images()[1]]),
}
ODD_TENSORS: dict[str, Callable[[], Any]] = {
    "no samples": lambda: images()[:0],
    "no features": lambda: images()[..., :0],
    "NaN": lambda: images().fill_(NAN),
    "one NaN": lambda: images().index_fill_(0, torch.tensor([1]), NAN),
    "infinite": lambda: images().fill_(INFINITY),
    "levels of gray": lambda: images().mul(255).round(),
    "negative": lambda: images() - 1,
    "above 1": lambda: images() + 0.5,
    "float64": lambda: images().double(),
    "float16": lambda: images().half(),
    "bfloat16": lambda: images().bfloat16(),
    "float8": lambda: images().to(torch.float8_e4m3fn),
    "huge": lambda: images() * 1e38,
    "expanded": lambda: images()[:1].expand(4, -1, -1, -1),
    "in a graph": lambda: images().requires_grad_() * 1,
    "channels last": lambda: images().contiguous(memory_format=torch.channels_last),
    "made in inference": lambda: _in_inference(images),
}
LABELS: dict[str, Callable[[], Any]] = {
    "a list": lambda: labels().tolist(),
    "an array": lambda: labels().numpy(),
    "text": lambda: "x",
    "a number": lambda: torch.tensor(1),
    "floats": lambda: labels().float(),
    "bools": lambda: labels() > 1,
    "complex numbers": lambda: labels().to(torch.complex64),
    "too few": lambda: labels()[:2],
    "too many": lambda: torch.cat([labels(), labels()]),
    "none": lambda: labels()[:0],
    "negative": lambda: labels() - 1,
    "too large": lambda: labels() + 7,
    "one-hot": lambda: torch.eye(10)[labels()],
    "a column": lambda: labels()[:, None],
    "no memory": lambda: labels().to("meta"),
}
ODD_LABELS: dict[str, Callable[[], Any]] = {
    "int32": lambda: labels().int(),
    "bytes": lambda: labels().byte(),
    "made in inference": lambda: _in_inference(labels),
}

# Options of the command line.
TEXTS = ["", " ", "²", "nan", "no such thing", "[red]", "[/]", "\x1b[31m", "x" * 5000, "../..", "a=b=c", "=", "\udcff"]
WHOLE_TEXTS = [*TEXTS, "inf", "-1", "10.7", "1e3", "99999999999999999999999", "+5x", "0x10"]
NUMBER_TEXTS = [*TEXTS, "inf", "-inf", "-1", "1e999", "NaN", "1,5", "0x1p3"]
PATHS = ["\0", "/dev/null/x", "x" * 300, "{file}", "{file}/x", "/dev/full"]


def _in_inference(make: Callable[[], Tensor]) -> Tensor:
    with torch.inference_mode():
        return make().clone()

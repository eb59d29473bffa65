"""What is passed where nothing is wrong, and models that are: small, seeded, and importable by the command line."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

SHAPE = (1, 8, 8)  # that of the bundled digits
CLASSES = 10


def net(features: int = 64) -> nn.Sequential:
    """A classifier of digits that every function of the library takes."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(features, 8), nn.Softplus(), nn.Linear(8, CLASSES)).eval()


def images() -> Tensor:
    return torch.rand(4, *SHAPE, generator=torch.Generator().manual_seed(1))


def labels() -> Tensor:
    return torch.arange(4)


class Wrapped(nn.Module):
    """The classifier behind a change of its output."""

    def __init__(self, change: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.inner, self.change = net(), change

    def forward(self, x: Tensor) -> Any:
        return self.change(self.inner(x))


def _raise(_: Tensor) -> Any:
    raise KeyError("the model's own mistake")


def _filled(value: float) -> nn.Module:
    model = net()
    nn.init.constant_(model[1].weight, value)
    return model


def _typed(kind: torch.dtype) -> nn.Module:
    model = net()
    model[1].weight = nn.Parameter(model[1].weight.detach().to(kind), requires_grad=kind.is_floating_point)
    return model


def _no_statistics() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64, track_running_stats=False), nn.Linear(64, CLASSES)).eval()


# Models with which no measurement, attack or certificate makes sense: refused wherever a model is run.
WRONG: dict[str, Callable[[], nn.Module]] = {
    "returns a tuple": lambda: Wrapped(lambda z: (z, z)),
    "returns a list": lambda: Wrapped(lambda z: [z]),
    "returns a dict": lambda: Wrapped(lambda z: {"scores": z}),
    "returns None": lambda: Wrapped(lambda z: None),
    "returns text": lambda: Wrapped(lambda z: "cat"),
    "returns no batch": lambda: Wrapped(lambda z: z.sum()),
    "returns another batch": lambda: Wrapped(lambda z: z[:, None].repeat(1, 2, 1).flatten(0, 1)),
    "returns maps": lambda: Wrapped(lambda z: z[:, :, None]),
    "returns whole numbers": lambda: Wrapped(lambda z: z.round().long()),
    "returns complex numbers": lambda: Wrapped(lambda z: torch.complex(z, z)),
    "returns no class": lambda: Wrapped(lambda z: z[:, :0]),
    "raises": lambda: Wrapped(_raise),
    "takes another shape": lambda: net(63),
    "takes no input": lambda: nn.ModuleList([nn.Linear(2, 2)]),
    "NaN weights": lambda: _filled(torch.nan),
    "infinite weights": lambda: _filled(torch.inf),
    "half of it float64": lambda: _typed(torch.float64),
    "half of it float16": lambda: _typed(torch.float16),
    "complex weights": lambda: _typed(torch.complex64),
    "integer weights": lambda: _typed(torch.int64),
    "no memory": lambda: net().to("meta"),
    "lazy": lambda: nn.Sequential(nn.Flatten(), nn.LazyLinear(CLASSES)),
}

# Models that may be refused or taken, but never end in another error.
ODD: dict[str, Callable[[], nn.Module]] = {
    "one class": lambda: Wrapped(lambda z: z[:, :1]),
    "returns NaN": lambda: Wrapped(lambda z: z * torch.nan),
    "in training": lambda: net().train(),
    "no running statistics": _no_statistics,
    "no parameters": lambda: nn.Flatten(),
    "no modules": lambda: nn.Sequential(),
    "float64": lambda: net().double(),
    "bfloat16": lambda: net().bfloat16(),
    "float16": lambda: net().half(),
    "huge weights": lambda: _filled(1e30),
    "tiny weights": lambda: _filled(1e-38),
    "no weights": lambda: _filled(0.0),
    "detached": lambda: Wrapped(lambda z: z.detach()),
    "chunk": lambda: Wrapped(lambda z: z.chunk(2, dim=1)[0]),
    "legacy weight norm": lambda: nn.Sequential(nn.Flatten(), nn.utils.weight_norm(nn.Linear(64, CLASSES))),
    "legacy spectral norm": lambda: nn.Sequential(nn.Flatten(), nn.utils.spectral_norm(nn.Linear(64, CLASSES))),
    "pooling with a negative divisor": lambda: nn.Sequential(
        nn.AvgPool2d(2, divisor_override=-2), nn.Flatten(), nn.Linear(16, CLASSES)
    ),
    "dropout": lambda: nn.Sequential(net(), nn.Dropout()),
}


def layer() -> nn.Module:
    return nn.Conv2d(2, 3, 3, padding=1)


def _layer(value: float, kind: torch.dtype = torch.float32) -> nn.Module:
    made = nn.Linear(3, 2)
    made.weight = nn.Parameter(torch.full((2, 3), value, dtype=kind), requires_grad=kind.is_floating_point)
    return made


WRONG_LAYERS: dict[str, Callable[[], nn.Module]] = {
    "no layer": nn.ReLU,
    "a network": net,
    "an embedding": lambda: nn.Embedding(3, 3),
    "a transposed convolution": lambda: nn.ConvTranspose2d(1, 1, 3),
    "NaN weights": lambda: _layer(torch.nan),
    "infinite weights": lambda: _layer(torch.inf),
    "complex weights": lambda: _layer(1.0, torch.complex64),
    "integer weights": lambda: _layer(1.0, torch.int64),
    "no memory": lambda: nn.Linear(3, 2, device="meta"),
    "lazy": lambda: nn.LazyLinear(2),
    "reflecting": lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"),
}
ODD_LAYERS: dict[str, Callable[[], nn.Module]] = {
    "tiny weights": lambda: _layer(1e-30),
    "smallest weights": lambda: _layer(1e-45),
    "huge weights": lambda: _layer(1e20),
    "largest weights": lambda: _layer(3e38),
    "no weights": lambda: _layer(0.0),
    "float64": lambda: _layer(1.0, torch.float64),
    "float16": lambda: _layer(1.0, torch.float16),
    "bfloat16": lambda: _layer(1.0, torch.bfloat16),
    "no inputs": lambda: nn.Linear(0, 2),
    "no outputs": lambda: nn.Linear(2, 0),
    "legacy weight norm": lambda: nn.utils.weight_norm(nn.Linear(3, 2)),
    "legacy spectral norm": lambda: nn.utils.spectral_norm(nn.Linear(3, 2)),
}


def __getattr__(name: str) -> Callable[[], Any]:
    """Factories by name, for `tests.boundary.subjects:returns_a_tuple` on a command line."""
    for table in (WRONG, ODD):
        for title, factory in table.items():
            if title.replace(" ", "_") == name:
                return factory
    raise AttributeError(name)

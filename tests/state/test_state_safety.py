"""Each cell of the table in docs/state-safety.md: what may be done with which layer, and what is refused by name."""

import copy
import io
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

from lowcurve import CenteredSoftplus, LipschitzBatchNorm2d, convert, spectral_norm
from lowcurve.errors import UserError
from lowcurve.layers.normalized import normalized_layers
from tests.layers.test_spectral_follows import norm_of

X, Y = torch.rand(8, 3, 6, 6, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 4
DOCS = Path(__file__).parents[2] / "docs" / "state-safety.md"


class Block(nn.Module):
    """A residual block whose last batch norm starts at 0, as is usual."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.relu = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()
        nn.init.zeros_(self.norm.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(x + self.norm(self.conv(x)))


def resnet() -> nn.Module:
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)]
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), Block(), Block(), *head
    )
    return convert(net, X)[0]


def ended(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(4))


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "centered softplus": lambda: ended(nn.Conv2d(3, 4, 3), CenteredSoftplus()),
    "spectral norm": lambda: ended(spectral_norm(nn.Conv2d(3, 4, 3), (6, 6)), nn.Tanh()),
    "γ-BN": lambda: ended(nn.Conv2d(3, 4, 3), LipschitzBatchNorm2d(4, init_gamma=0.7, affine=True)),
    "converted ResNet": resnet,
}


def made(layer: str) -> nn.Module:
    torch.manual_seed(0)
    net = LAYERS[layer]()
    net(X)
    return net.train()


def step(net: nn.Module, call: Callable[[Tensor], Tensor] | None = None, rate: float = 0.1) -> Tensor:
    """Take a step of gradient descent; return all gradients in one vector."""
    net.zero_grad()
    loss = F.cross_entropy((call or net)(X).float(), Y)
    loss.backward()
    found = torch.cat([p.grad.flatten() for p in net.parameters()])
    with torch.no_grad():
        for p in net.parameters():
            p -= rate * p.grad
    return found


def alike(net: nn.Module, twin: nn.Module, call: Callable[[Tensor], Tensor], tolerance: float = 1e-5) -> None:
    """Three steps of both have the same gradients and the same buffers."""
    for _ in range(3):
        expected = step(net)
        found = step(twin, call)
        assert bool(found.isfinite().all())
        assert torch.allclose(found, expected, atol=tolerance * float(expected.abs().max()))
    for (name, mine), theirs in zip(twin.named_buffers(), net.buffers(), strict=True):
        assert torch.allclose(mine.double(), theirs.double(), atol=max(1e-3, 10 * tolerance)), name


def units(net: nn.Module) -> None:
    """All operator norms are 1 in eval mode."""
    net.eval()
    assert all(abs(norm_of(layer) - 1) < 1e-3 for _, layer, _ in normalized_layers(net))


def trained(layer: str) -> nn.Module:
    net = made(layer)
    for _ in range(3):
        step(net)
    return net


def deep_copy(layer: str) -> None:
    net = trained(layer)
    twin = copy.deepcopy(net)
    assert torch.equal(copy.deepcopy(net).eval()(X), net.eval()(X))
    alike(net.train(), twin, twin, 1e-7)


def state_dict(layer: str) -> None:
    net, twin = trained(layer), made(layer)
    twin.load_state_dict(net.state_dict())
    assert torch.equal(copy.deepcopy(twin).eval()(X), copy.deepcopy(net).eval()(X))
    alike(net, twin, twin, 1e-7)


def saved_and_loaded(layer: str) -> None:
    net, twin, file = trained(layer), made(layer), io.BytesIO()
    torch.save(net.state_dict(), file)
    file.seek(0)
    twin.load_state_dict(torch.load(file, weights_only=True))
    units(twin)
    assert torch.equal(twin(X), net.eval()(X))


def averaged(layer: str, buffers: bool) -> None:
    net = made(layer)
    average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.5), use_buffers=buffers)
    for _ in range(4):
        step(net)
        average.update_parameters(net)
    units(average)
    assert bool(average(X).isfinite().all())


def averaged_like_timm(layer: str) -> None:
    """ModelEmaV2: a copy in eval mode, whose state dict's tensors are averaged one by one, integers included."""
    net = made(layer)
    average = copy.deepcopy(net).eval()
    for _ in range(4):
        step(net)
        with torch.no_grad():
            for mine, theirs in zip(average.state_dict().values(), net.state_dict().values(), strict=True):
                mine.copy_(0.5 * mine + 0.5 * theirs)
    before = average(X)  # no further eval()
    units(average)
    assert torch.equal(average(X), before)


def distributed(layer: str) -> None:
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        net = made(layer)
        twin = copy.deepcopy(net)
        alike(net, twin, DistributedDataParallel(twin))
    finally:
        dist.destroy_process_group()


def data_parallel(layer: str) -> None:
    net = made(layer)
    twin = copy.deepcopy(net)
    alike(net, twin, DataParallel(twin))


def under_autocast(layer: str, dtype: torch.dtype) -> None:
    net = made(layer)
    twin = copy.deepcopy(net)

    def call(x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=dtype):
            return twin(x)

    alike(net, twin, call, 0.1)
    units(twin)


def with_grad_scaler(layer: str) -> None:
    net = made(layer)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)  # too large at first: steps are left out
    before = copy.deepcopy(net.state_dict())
    for _ in range(30):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(net(X).float(), Y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    assert all(bool(p.isfinite().all()) for p in net.state_dict().values())
    assert not all(torch.equal(p, before[name]) for name, p in net.named_parameters())
    units(net)


def checkpointed(layer: str, reentrant: bool) -> None:
    net = made(layer)
    twin = copy.deepcopy(net)
    x = X.clone().requires_grad_()
    alike(net, twin, lambda _: checkpoint(twin, x, use_reentrant=reentrant))


def accumulated(layer: str) -> None:
    net = made(layer)
    twin = copy.deepcopy(net)

    def twice(model: nn.Module) -> Callable[[Tensor], Tensor]:
        return lambda x: (model(x) + model(x)) / 2

    whole = step(net, twice(net))
    twin.zero_grad()
    for _ in range(2):
        F.cross_entropy(twin(X), Y).div(2).backward()
    parts = torch.cat([p.grad.flatten() for p in twin.parameters()])
    if layer in ("centered softplus", "spectral norm"):  # in the others the second forward scales anew
        assert torch.allclose(parts, whole, atol=1e-5)
    assert bool(parts.isfinite().all())


def compiled(layer: str, backend: str) -> None:
    if backend == "inductor" and layer != "converted ResNet" and "LOWCURVE_SLOW" not in os.environ:
        pytest.skip("the converted ResNet, which has them all, is compiled; LOWCURVE_SLOW=1 compiles each")
    torch._dynamo.reset()
    net = made(layer)
    twin = copy.deepcopy(net)
    alike(net, twin, torch.compile(twin, backend=backend), 1e-4)


def transformed(layer: str) -> None:
    net = trained(layer).eval()
    parameters = {name: p.detach() for name, p in net.named_parameters()}

    def loss(values: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(torch.func.functional_call(net, values, (x[None],)), y[None])

    each = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(parameters, X, Y)
    net.zero_grad()
    F.cross_entropy(net(X), Y).backward()
    for name, parameter in net.named_parameters():
        assert torch.allclose(each[name].mean(0), parameter.grad, atol=1e-5), name
    if layer != "spectral norm" and layer != "centered softplus":
        with pytest.raises(RuntimeError):
            torch.func.vmap(lambda x: net.train()(x[None]))(X)


def in_inference_mode(layer: str) -> None:
    net = trained(layer).eval()
    expected = net(X)
    with torch.no_grad():
        for p in net.parameters():
            p.mul_(1.5)
    with torch.inference_mode():
        found = net(X)
    assert torch.equal(found, net(X)) and not torch.equal(found, expected)
    step(net.train())
    units(net)


WAYS: dict[str, Callable[[str], None]] = {
    "deepcopy": deep_copy,
    "state_dict": state_dict,
    "torch.save, torch.load": saved_and_loaded,
    "EMA of parameters and buffers": lambda layer: averaged(layer, True),
    "EMA of parameters": lambda layer: averaged(layer, False),
    "EMA as timm's ModelEmaV2": averaged_like_timm,
    "DistributedDataParallel": distributed,
    "DataParallel": data_parallel,
    "bf16 autocast": lambda layer: under_autocast(layer, torch.bfloat16),
    "fp16 with GradScaler": with_grad_scaler,
    "checkpointing, reentrant": lambda layer: checkpointed(layer, True),
    "checkpointing, not reentrant": lambda layer: checkpointed(layer, False),
    "gradient accumulation": accumulated,
    "torch.compile, aot_eager": lambda layer: compiled(layer, "aot_eager"),
    "torch.compile, inductor": lambda layer: compiled(layer, "inductor"),
    "torch.func": transformed,
    "inference_mode": in_inference_mode,
}


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.filterwarnings("ignore")
def test_cell(way: str, layer: str) -> None:
    WAYS[way](layer)


def test_the_documented_table_is_this_one() -> None:
    lines = DOCS.read_text("utf-8").split("\n\n")
    table = next(part for part in lines if part.startswith("| |"))
    head, _, *cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    assert head[1:] == list(LAYERS)
    assert [row[0].replace("`", "") for row in cells] == list(WAYS)
    assert all(cell.startswith(("works", "refused")) for row in cells for cell in row[1:])


def test_what_the_table_says_is_refused_is_refused_by_name() -> None:
    with pytest.raises(RuntimeError, match="state_dict"):  # PyTorch's own words
        torch.save(made("spectral norm"), io.BytesIO())
    net = made("γ-BN")
    first, second = (checkpoint(net, x, use_reentrant=False) for x in (X, X.flip(0)))
    with pytest.raises(UserError, match="LipschitzBatchNorm2d"):
        (first + 2 * second).sum().backward()

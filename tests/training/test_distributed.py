"""Two gloo processes with half batches against one process with full batches."""

import os
import socket
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp
from safetensors.torch import load_file, save_file
from torch import nn

from lowcurve.errors import UserError
from lowcurve.layers.normalized import normalized_layers
from lowcurve.methods import apply_surgery, find_method
from lowcurve.training import loop
from lowcurve.training.compiled import CompiledStep
from lowcurve.training.config import Config, TrainConfig, parse_config
from lowcurve.training.distributed import World, choose_device, processes
from lowcurve.training.loop import train
from lowcurve.training.optimizer import make_optimizer
from lowcurve.training.runs import load
from lowcurve.training.step import training_step
from lowcurve.training.sync import GlobalBatchNorm, synchronize

STEPS, BATCH, SHAPE = 3, 16, (1, 8, 8)
# name -> batch norm?, method, coefficients; batch statistics are global in all cases but "plain"
CASES = {
    "double": (False, "lcnn+gradreg", {"lambda_grad": 0.1}),
    "global": (True, "lcnn+gradreg", {"lambda_grad": 0.1}),
    "finite": (True, "lcnn+gradreg", {"lambda_grad": 0.1, "gradient": "finite"}),
    "cure": (True, "csoftplus-only+cure", {"lambda_cure": 0.1}),
    "plain": (True, "lcnn", {}),
}


def network(batchnorm: bool, method: str) -> nn.Module:
    layers = [nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()]
    layers += [nn.Conv2d(4, 6, 3, stride=2), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(54, 3)]
    kept = [layer for layer in layers if batchnorm or not isinstance(layer, nn.BatchNorm2d)]
    return apply_surgery(nn.Sequential(*kept), find_method(method), SHAPE).double().train()


def steps(case: str, world: World) -> dict[str, torch.Tensor]:
    """Train a few steps in float64; return the weights and buffers."""
    batchnorm, method, numbers = CASES[case]
    torch.manual_seed(0)
    model = network(batchnorm, method)
    model = synchronize(model) if world.size > 1 and case != "plain" else model
    wrapped = world.wrap(model)
    optimizer = make_optimizer(model, TrainConfig(lr=0.02))
    rng = torch.Generator().manual_seed(1)
    share = BATCH // world.size
    part = slice(world.rank * share, (world.rank + 1) * share)
    for _ in range(STEPS):
        x = torch.rand(BATCH, *SHAPE, generator=rng, dtype=torch.float64)
        y = torch.randint(3, (BATCH,), generator=rng)
        training_step(wrapped, x[part], y[part], method, numbers)
        optimizer.step()
        world.average_statistics(model)
    return {key: value.detach().clone().contiguous() for key, value in model.state_dict().items()}


def run(rank: int, port: int, folder: str) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    with processes("cpu") as world:
        for case in CASES:
            save_file(steps(case, world), Path(folder) / f"{case}-{rank}.safetensors")
        train(whole_run(Path(folder), "pair"))
        loop.CompiledStep = partial(CompiledStep, backend="aot_eager")  # inductor takes minutes on a busy machine
        train(whole_run(Path(folder), "compiled", compile=True))


def whole_run(folder: Path, name: str, **settings: object) -> Config:
    """A recipe whose batches all have an even number of samples."""
    return parse_config(
        {
            "name": name,
            "output": str(folder),
            "data": {"name": "digits", "limit_train": 64, "limit_test": 51},
            "model": {"name": "convnet", "width": 4},
            "method": {"name": "lcnn+gradreg"},
            "train": {"epochs": 2, "batch_size": 16, **settings},
        }
    )


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pair")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(run, (port, str(folder)), nprocs=2)
    return folder


@pytest.mark.parametrize("case", [case for case in CASES if case != "plain"])
def test_two_half_batches_train_like_one_whole(pair: Path, case: str) -> None:
    alone = steps(case, World(0, 1, torch.device("cpu")))
    tolerance = 1e-5 if case != "finite" else 1e-4  # differences divide rounding errors by the step
    for rank in (0, 1):
        together = load_file(pair / f"{case}-{rank}.safetensors")
        for key, value in alone.items():
            assert torch.allclose(together[key], value, rtol=0, atol=tolerance), key


def test_without_global_statistics_ranks_still_agree(pair: Path) -> None:
    first, second = (load_file(pair / f"plain-{rank}.safetensors") for rank in (0, 1))
    assert all(torch.equal(value, second[key]) for key, value in first.items())
    assert any("running_var" in key for key in first) and any("parametrizations" in key for key in first)


def test_a_whole_run_on_two_processes_writes_one_folder_like_one_process(pair: Path) -> None:
    alone = train(whole_run(pair, "alone"))
    weights, expected = load_file(pair / "pair" / "model.safetensors"), load_file(alone.folder / "model.safetensors")
    vectors = (".left", ".right")  # of singular values that are close to one another, which rounding chooses among
    apart = {k for k, value in expected.items() if not torch.allclose(weights[k], value, atol=1e-5)}
    assert all(key.endswith(vectors) for key in apart)
    norms = [{name: spectral.sigma(spectral.given()).item() for name, _, spectral in normalized_layers(load(folder))}
             for folder in (pair / "pair", alone.folder)]  # fmt: skip
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)
    rows = type(alone)(pair / "pair").metrics
    for mine, theirs in zip(rows, alone.metrics, strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
        assert mine["test_accuracy"] == pytest.approx(theirs["test_accuracy"])
    assert type(alone)(pair / "pair").environment["processes"] == 2


def test_compiled_steps_of_two_processes_train_like_those_that_are_not(pair: Path) -> None:
    weights, expected = (load_file(pair / name / "model.safetensors") for name in ("compiled", "pair"))
    apart = {k for k, value in expected.items() if not torch.allclose(weights[k], value, atol=1e-5)}
    assert all(key.endswith((".left", ".right")) for key in apart)


def test_a_global_batch_norm_in_eval_mode_is_the_plain_one() -> None:
    torch.manual_seed(0)
    plain = nn.BatchNorm2d(3)
    plain(torch.rand(8, 3, 4, 4))
    with torch.no_grad():
        plain.weight.copy_(torch.rand(3))
    wrapped = synchronize(nn.Sequential(plain))
    assert isinstance(wrapped[0], GlobalBatchNorm)
    x = torch.rand(2, 3, 4, 4)
    assert torch.equal(wrapped.eval()(x), plain.eval()(x))


def test_an_unusable_device_is_refused() -> None:
    for device in ("cuda:99", "nonsense"):
        with pytest.raises(UserError, match="cannot be used"):
            choose_device(device)

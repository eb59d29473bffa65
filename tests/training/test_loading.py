"""What is loaded is sound: the checksum cannot be left out, weights are finite and of the network's own type."""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save
from torch import Tensor

from lowcurve.errors import UserError
from lowcurve.training import loop
from lowcurve.training.checkpoint import Checkpoint, latest_checkpoint, load_weights, save_checkpoint
from lowcurve.training.loop import train
from lowcurve.training.runs import Run, load
from tests.training.makers import recipe

Tensors = dict[str, Tensor]
MLP = {"name": "mlp", "width": 4}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(recipe(tmp_path_factory.mktemp("finished"), model=MLP, train__epochs=2))


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with one epoch behind it, stopped in the second."""
    folder = tmp_path_factory.mktemp("stopped")
    real, calls = loop.TrainingStep.__call__, iter(range(9))

    def fail(*arguments: object) -> Tensors:
        if next(calls) == 5:
            raise ZeroDivisionError
        return real(*arguments)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(loop.TrainingStep, "__call__", fail)
        train(recipe(folder, model=MLP))
    return folder / "run"


@pytest.fixture
def run(finished: Run, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished.folder, tmp_path / "run"))


def rewrite(run: Path, change: Callable[[Tensor], Tensor], name: str) -> None:
    """Change a tensor and make the checksum right again, as a careless tool or an enemy would."""
    tensors = load_file(run / "model.safetensors")
    data = save(tensors | {name: change(tensors[name]).contiguous()})
    (run / "model.safetensors").write_bytes(data)
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps(summary | {"weights_sha256": hashlib.sha256(data).hexdigest()}))


def spoiled(value: float) -> Callable[[Tensor], Tensor]:
    def spoil(tensor: Tensor) -> Tensor:
        tensor.view(-1)[-1] = value
        return tensor

    return spoil


CHANGES: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "nan": (spoiled(float("nan")), "1 value.* no finite numbers"),
    "inf": (spoiled(float("inf")), "1 value.* no finite numbers"),
    "integer": (lambda tensor: tensor.to(torch.int64), "expected torch.float32"),
    "complex": (lambda tensor: tensor.to(torch.complex64), "expected torch.float32"),
    "double": (lambda tensor: tensor.double(), "expected torch.float32"),
    "half": (lambda tensor: tensor.half(), "expected torch.float32"),
    "shape": (lambda tensor: tensor[None], "of shape"),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_unsound_weights_are_refused(run: Path, kind: str) -> None:
    change, message = CHANGES[kind]
    for name in ("1.parametrizations.weight.original", "2.log_beta", "1.bias"):
        if name in load_file(run / "model.safetensors"):
            rewrite(run, change, name)
            with pytest.raises(UserError, match=message):
                load(run)
            return
    pytest.fail("no such weight")


@pytest.mark.parametrize("kind", CHANGES)
@pytest.mark.parametrize("part", ["model", "momentum"])
def test_an_unsound_checkpoint_is_refused(stopped: Path, tmp_path: Path, kind: str, part: str) -> None:
    change, message = CHANGES[kind]
    folder = Path(shutil.copytree(stopped, tmp_path / "run"))
    saved = latest_checkpoint(folder / "checkpoints")
    assert saved is not None and saved.position.epoch == 1
    name = next(name for name in saved.tensors if name.startswith(f"{part}.") and saved.tensors[name].ndim == 2)
    tensors = saved.tensors | {name: change(saved.tensors[name])}
    save_checkpoint(folder / "checkpoints", Checkpoint(saved.position, tensors))
    with pytest.raises(UserError, match=message):
        train(recipe(tmp_path, model=MLP), resume="auto")


@pytest.mark.parametrize("change", [lambda s: s.pop("weights_sha256"), lambda s: s.update(weights_sha256=None)])
def test_leaving_the_checksum_out_does_not_turn_the_check_off(run: Path, change: Callable[[dict], object]) -> None:
    summary = json.loads((run / "summary.json").read_text())
    change(summary)
    (run / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(UserError, match="does not tell the SHA-256"):
        load(run)


def test_a_mask_of_the_networks_own_may_be_infinite() -> None:
    net = torch.nn.Linear(2, 2)
    net.register_buffer("mask", torch.tensor([0.0, -float("inf")]))
    load_weights(net, {key: value.clone() for key, value in net.state_dict().items()}, "here")
    with pytest.raises(UserError, match="no finite numbers"):
        load_weights(net, net.state_dict() | {"mask": torch.tensor([float("inf"), 0.0])}, "here")


GARBAGE = {
    "binary": b"\x00\xff\xfe garbage\n",
    "text": b"hello\n",
    "another epoch": b'{"epoch": 7, "loss": 1.0}\n',
    "words": b'{"epoch": 0, "loss": "low", "train_accuracy": 1, "images_per_second": 1, "beta": {}, "gamma": {}}\n',
    "half a row": b'{"epoch": 0, "loss": 1.0}\n',
    "a list": b"[1, 2]\n",
    "deep": b"[" * 100_000 + b"\n",
    "nothing": b"",
}


@pytest.mark.parametrize("kind", GARBAGE)
def test_a_run_does_not_go_on_from_garbage_metrics(stopped: Path, tmp_path: Path, kind: str) -> None:
    folder = Path(shutil.copytree(stopped, tmp_path / "run"))
    (folder / "metrics.jsonl").write_bytes(GARBAGE[kind])
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match=r"should tell of 1 epochs before the checkpoint, got 0"):
        train(recipe(tmp_path, model=MLP), resume="auto")
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    if GARBAGE[kind]:
        with pytest.raises(UserError, match="line 1 is no"):
            _ = Run(folder).metrics


def test_garbage_behind_the_checkpoint_is_repaired_with_a_warning(
    stopped: Path, finished: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = Path(shutil.copytree(stopped, tmp_path / "run"))
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write(b"garbage\n")
    with caplog.at_level(logging.WARNING):
        run = train(recipe(tmp_path, model=MLP), resume="auto")
    assert "line 2 is no JSON; epochs from 1 on are trained and written anew" in caplog.text
    assert [row["epoch"] for row in run.metrics] == [0, 1, 2]


def test_a_pipe_in_a_run_is_not_waited_for(run: Path) -> None:
    for name in ("model.safetensors", "environment.json"):
        (run / name).rename(run / "kept")
        os.mkfifo(run / name)
        with pytest.raises(UserError, match="not a regular file"):
            load(run)
        (run / name).unlink()
        (run / "kept").rename(run / name)
    load(run)

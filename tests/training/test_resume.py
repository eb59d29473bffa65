"""A run survives: killed, stopped, damaged or contested, it ends with the bits of an undisturbed one."""

import json
import os
import random
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from lowcurve.errors import UserError
from lowcurve.training import loop
from lowcurve.training.checkpoint import latest_checkpoint
from lowcurve.training.loop import train
from lowcurve.training.runs import Run
from tests.training.makers import in_child, recipe, same_bits, weights

STEPS = 9


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Bits are promised for one number of threads, and a forked child has but one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def undisturbed(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(recipe(tmp_path_factory.mktemp("undisturbed"), train__checkpoint_seconds=3600))


class Crash(Exception):
    """Something unforeseen."""


def crash_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the training step fail once, `step` steps from now."""
    real, calls = loop.TrainingStep.__call__, iter(range(step + 1))

    def fail(*arguments: object) -> dict[str, Tensor]:
        if next(calls) == step:
            raise Crash
        return real(*arguments)

    monkeypatch.setattr(loop.TrainingStep, "__call__", fail)


@pytest.mark.parametrize("step", [0, 1, 3, 5, STEPS - 1])
def test_a_crash_at_any_step_costs_no_bit(
    tmp_path: Path, undisturbed: Run, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, pytest.raises(Crash):
        crash_at(step, patch)
        train(recipe(tmp_path))
    torch.manual_seed(step)  # the state of the caller's generator does not matter
    run = train(recipe(tmp_path), resume="auto")
    assert same_bits(weights(run), weights(undisturbed))
    timed = ("images_per_second",)
    for mine, theirs in zip(run.metrics, undisturbed.metrics, strict=True):
        assert {k: v for k, v in mine.items() if k not in timed} == {k: v for k, v in theirs.items() if k not in timed}


def test_kill_minus_nine_costs_no_bit(tmp_path: Path, undisturbed: Run) -> None:
    config, chance, kills = recipe(tmp_path), random.Random(0), 0
    while not Run(config.folder).finished:
        process = in_child(lambda: train(config, resume="auto"))
        if kills < 4:
            time.sleep(chance.uniform(0.05, 0.6))
            os.kill(process, signal.SIGKILL)
            kills += 1
        os.waitpid(process, 0)
    assert same_bits(weights(Run(config.folder)), weights(undisturbed))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves_and_exits_cleanly(tmp_path: Path, undisturbed: Run, number: int, code: int) -> None:
    config = recipe(tmp_path, train__checkpoint_seconds=3600)

    def train_and_signal() -> None:
        real, calls = loop.TrainingStep.__call__, iter(range(STEPS))

        def signalled(*arguments: object) -> dict[str, Tensor]:
            if next(calls) == 4:
                os.kill(os.getpid(), number)
            return real(*arguments)

        loop.TrainingStep.__call__ = signalled  # type: ignore[method-assign]
        train(config)

    _, status = os.waitpid(in_child(train_and_signal), 0)
    assert os.waitstatus_to_exitcode(status) == code
    saved = latest_checkpoint(config.folder / "checkpoints")
    assert saved is not None and saved.position.total == 5  # the step under way was finished first
    assert same_bits(weights(train(config, resume="auto")), weights(undisturbed))


def damage(path: Path, how: str) -> None:
    data = path.read_bytes()
    middle = len(data) // 2
    changed = {
        "cut": data[:middle],
        "flip": data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :],
        "empty": b"",
    }
    path.write_bytes(changed[how])


@pytest.mark.parametrize("how", ["cut", "flip", "empty"])
@pytest.mark.parametrize("suffix", [".safetensors", ".json"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(
    tmp_path: Path,
    undisturbed: Run,
    how: str,
    suffix: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with monkeypatch.context() as patch, pytest.raises(Crash):
        crash_at(6, patch)
        train(recipe(tmp_path))
    folder = recipe(tmp_path).folder / "checkpoints"
    assert sorted(path.name for path in folder.glob("*.json")) == ["000000005.json", "000000006.json"]
    damage(folder / f"000000006{suffix}", how)
    run = train(recipe(tmp_path), resume="auto")
    assert "000000006.json is damaged" in caplog.text
    assert same_bits(weights(run), weights(undisturbed))


def test_when_every_checkpoint_is_damaged_the_run_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch, pytest.raises(Crash):
        crash_at(2, patch)
        train(recipe(tmp_path))
    for path in (recipe(tmp_path).folder / "checkpoints").glob("*.json"):
        damage(path, "flip")
    with pytest.raises(UserError, match=r"no checkpoint .* can be read"):
        train(recipe(tmp_path), resume="auto")


def test_a_finished_run_is_returned_and_a_begun_one_is_not_overwritten(undisturbed: Run) -> None:
    config = recipe(undisturbed.folder.parent)
    before = (undisturbed.folder / "model.safetensors").stat().st_mtime_ns
    assert train(config, resume="auto") == undisturbed
    assert (undisturbed.folder / "model.safetensors").stat().st_mtime_ns == before
    with pytest.raises(UserError, match="--resume auto"):
        train(config)


def test_another_recipe_in_the_same_folder_is_refused(undisturbed: Run) -> None:
    with pytest.raises(UserError, match=r"train.lr: 0.05 before, 0.01 now"):
        train(recipe(undisturbed.folder.parent, train__lr=0.01), resume="auto")


def test_a_second_process_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    config = recipe(tmp_path, train__epochs=10_000)
    process = in_child(lambda: train(config))
    try:
        while not list((config.folder / "checkpoints").glob("*.json")):
            time.sleep(0.01)
        with pytest.raises(UserError, match="another process"):
            train(config, resume="auto")
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)


def test_a_diverging_run_stops_and_keeps_good_weights(tmp_path: Path) -> None:
    config = recipe(tmp_path, train__lr=1e18, train__epochs=50, method={"name": "standard"})
    with pytest.raises(UserError, match=r"diverged.*train\.lr \(now 1e\+18\)"):
        train(config)
    saved = latest_checkpoint(config.folder / "checkpoints")
    assert saved is not None and not Run(config.folder).finished
    assert all(torch.isfinite(tensor).all() for name, tensor in saved.tensors.items() if name.startswith("model"))


def test_an_unwritable_place_is_an_error_before_the_first_step(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write"):
        train(recipe(tmp_path / "file"))


def test_a_full_disk_is_an_error_before_the_first_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop.TrainingStep, "__call__", lambda *arguments: pytest.fail("a step was taken"))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, limits[1]))  # files end where a full disk would end them
    try:
        with pytest.raises(UserError, match="free some space"):
            train(recipe(tmp_path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(recipe(tmp_path).folder.rglob("*.partial"))


def test_a_torn_line_of_metrics_is_dropped(tmp_path: Path, undisturbed: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch, pytest.raises(Crash):
        crash_at(7, patch)
        train(recipe(tmp_path))
    path = recipe(tmp_path).folder / "metrics.jsonl"
    with path.open("a") as file:
        file.write('{"epoch": 2, "loss": 1.')
    run = train(recipe(tmp_path), resume="auto")
    assert [json.loads(line)["epoch"] for line in path.read_text().splitlines()] == [0, 1, 2]
    assert run.metrics[-1]["loss"] == undisturbed.metrics[-1]["loss"]

"""Two processes, one of them killed: the other says which and how to go on, and the run ends with the same bits."""

import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.utils.tensorboard  # here, so that not every child does it

from lowcurve.errors import UserError
from lowcurve.training.config import Config
from lowcurve.training.loop import train
from lowcurve.training.runs import Run
from tests.training.makers import in_child, recipe, same_bits, weights

LENGTH = {"train__epochs": 4, "method": {"name": "lcnn"}}  # 12 steps; processes agree on a checkpoint at the tenth


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def start(config: Config) -> list[int]:
    """Train with two processes that are children of this one; each writes why it failed beside the run."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def work(rank: int) -> None:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        try:
            train(config, resume="auto")
        except UserError as error:
            (config.output / f"said-{rank}").write_text(str(error))
            os._exit(1)  # gloo's destructor now and then waits for a thread that still expects the lost process

    return [in_child(lambda rank=rank: work(rank)) for rank in (0, 1)]


def wait(processes: list[int]) -> None:
    for process in processes:
        assert os.waitpid(process, 0)[1] == 0


@pytest.fixture(scope="module")
def undisturbed(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Run:
    config = recipe(tmp_path_factory.mktemp("undisturbed"), **LENGTH)
    wait(start(config))
    return Run(config.folder)


@pytest.mark.parametrize("lost", [1])  # the first was tried too, and costs ten more seconds
def test_a_killed_rank_is_named_and_costs_no_bit(tmp_path: Path, undisturbed: Run, lost: int) -> None:
    config = recipe(tmp_path, **LENGTH)
    processes = start(config)
    while not (config.folder / "checkpoints" / "000000010.json").exists():
        time.sleep(0.005)
    os.kill(processes[lost], signal.SIGKILL)
    for process in processes:
        os.waitpid(process, 0)
    assert not Run(config.folder).finished
    said = (tmp_path / f"said-{1 - lost}").read_text()
    assert said.startswith(f"process {1 - lost} of 2 has lost process {lost}:") and "--resume auto" in said
    assert "\n" not in said
    wait(start(config))
    assert same_bits(weights(Run(config.folder)), weights(undisturbed))
    for mine, theirs in zip(Run(config.folder).metrics, undisturbed.metrics, strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-9) and mine["beta"] == theirs["beta"]

"""Who trains besides this process? Nobody, or those that torchrun or srun started, each with its share."""

import os
import socket
import subprocess
import time
import warnings
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from lowcurve.errors import UserError


@dataclass(frozen=True)
class World:
    """One process among all: `rank` of `size`, and its device."""

    rank: int
    size: int
    device: torch.device

    @property
    def first(self) -> bool:
        """Whether this process writes the files."""
        return self.rank == 0

    def total(self, tensor: Tensor) -> Tensor:
        """Return the sum over all processes."""
        if self.size > 1:
            tensor = tensor.clone()
            dist.all_reduce(tensor)
        return tensor

    def any(self, flag: bool) -> bool:
        """Whether any process says so; all of them learn the same answer."""
        return bool(self.total(torch.tensor(float(flag), device=self.device)))

    def agree(self, text: str) -> bool:
        """Whether all processes have the same text; all of them learn the same answer."""
        if self.size == 1:
            return True
        mine = float(zlib.crc32(text.encode()))
        mean = self.total(torch.tensor(mine, device=self.device, dtype=torch.float64)) / self.size
        return not self.any(bool(mean != mine))

    def wait(self) -> None:
        """Wait for all processes."""
        if self.size > 1:
            dist.barrier()

    def wrap(self, model: nn.Module) -> nn.Module:
        """Return a model whose backward averages gradients over processes.

        Buffers are not broadcast: a step may have several forwards, and singular vectors follow equal weights
        from equal starts on every rank. Running statistics are averaged by `average_statistics` instead.
        """
        if self.size == 1:
            return model
        devices = [self.device] if self.device.type == "cuda" else None
        with warnings.catch_warnings():  # newer versions rename the option, older ones know no other
            warnings.simplefilter("ignore", FutureWarning)
            return DistributedDataParallel(model, device_ids=devices, broadcast_buffers=False)

    def average_statistics(self, model: nn.Module) -> None:
        """Average the running statistics of every batch norm, so that γ-BN scales alike on every rank."""
        if self.size == 1:
            return
        _average(
            buffer
            for name, buffer in model.named_buffers()
            if name.endswith(("running_mean", "running_var")) and buffer is not None
        )

    def average_gradients(self, model: nn.Module) -> None:
        """Average all gradients, where no wrapper of the model has done so."""
        if self.size > 1:
            _average(p.grad for p in model.parameters() if p.grad is not None)


def _average(tensors: Iterable[Tensor]) -> None:
    """Average each tensor over all processes, in place."""
    given = list(tensors)
    if given:
        flat = torch.cat([tensor.flatten() for tensor in given]) / dist.get_world_size()
        dist.all_reduce(flat)
        for tensor, part in zip(given, flat.split([t.numel() for t in given]), strict=True):
            tensor.copy_(part.view_as(tensor))


def place() -> tuple[int, int, int]:
    """Return this process's rank, the number of processes and the rank on its machine, as torchrun or srun set them.

    Tasks of one step of srun train together; `WORLD_SIZE=1` in the environment lets each train alone.
    """
    if "WORLD_SIZE" in os.environ:
        names, size = ("RANK", "LOCAL_RANK"), os.environ["WORLD_SIZE"]
    else:
        names, size = ("SLURM_PROCID", "SLURM_LOCALID"), os.environ.get("SLURM_STEP_NUM_TASKS", "1")
    rank, local = (int(os.environ.get(name, "0")) for name in names)
    return rank, int(size), local


@contextmanager
def processes(device: str) -> Iterator[World]:
    """Join the processes of torchrun or srun (gloo on CPU, NCCL on GPUs) for the duration; alone without them."""
    rank, size, local = place()
    chosen = choose_device(device, local)
    if size == 1:
        yield World(0, 1, chosen)
        return
    owner = not dist.is_initialized()
    if owner:
        _join("nccl" if chosen.type == "cuda" else "gloo", rank, size)
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    world = World(dist.get_rank(), dist.get_world_size(), chosen)
    try:
        yield world
    finally:
        if owner:
            with suppress(RuntimeError):  # the others may be gone
                dist.destroy_process_group()


def _join(backend: str, rank: int, size: int) -> None:
    """Meet the other processes where torchrun says, or else on the first node of this step of srun."""
    if "WORLD_SIZE" in os.environ:
        dist.init_process_group(backend)
        return
    meeting = f"tcp://{_first_node()}:{_port()}"
    try:
        dist.init_process_group(backend, init_method=meeting, rank=rank, world_size=size)
    except dist.DistError as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"process {rank} of {size} cannot join at {meeting} ({reason}); set MASTER_PORT") from None


def _first_node() -> str:
    if "MASTER_ADDR" in os.environ:
        return os.environ["MASTER_ADDR"]
    if os.environ.get("SLURM_STEP_NUM_NODES", "1") == "1":
        return "127.0.0.1"
    command = ["scontrol", "show", "hostnames", os.environ["SLURM_STEP_NODELIST"]]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.SubprocessError, IndexError) as error:
        raise UserError(f"cannot find the first node of this job ({error}); set MASTER_ADDR to its name") from None


def _port() -> int:
    """Return a port that all tasks of a step choose alike, and other steps hardly ever."""
    job, step = (int(os.environ.get(f"SLURM_{name}_ID", "0")) for name in ("JOB", "STEP"))
    return int(os.environ.get("MASTER_PORT", 20_000 + (101 * job + step) % 10_000))


@contextmanager
def naming_losses(world: World) -> Iterator[None]:
    """Say which process has ended, and how to go on, where the others learn of it by a broken connection."""
    roll: list[tuple[int, int]] = []
    try:
        roll += _roll(world) if world.size > 1 else []
        yield
    except RuntimeError as error:
        lost = isinstance(error, dist.DistError) or any(word in str(error) for word in ("gloo", "NCCL"))
        if world.size == 1 or not lost:
            raise
        gone = " and ".join(map(str, _ended(world, roll))) or "on another machine, or one that does not answer"
        raise UserError(
            f"process {world.rank} of {world.size} has lost process {gone}: it was killed, ran out of memory or has "
            "said itself why it ended. Run the same command again with --resume auto to go on from the last checkpoint"
        ) from error


def _roll(world: World) -> list[tuple[int, int]]:
    """Return machine and process id of every process, by rank."""
    mine = torch.tensor([zlib.crc32(socket.gethostname().encode()), os.getpid()], device=world.device)
    every = [torch.zeros_like(mine) for _ in range(world.size)]
    dist.all_gather(every, mine)
    return [(int(machine), int(process)) for machine, process in every]


def _ended(world: World, roll: list[tuple[int, int]]) -> list[int]:
    """Return the ranks of this machine that have ended; the system may need a moment to tell."""
    for _ in range(20):
        gone = [
            rank for rank, (machine, process) in enumerate(roll) if machine == roll[world.rank][0] and _is_gone(process)
        ]
        if gone:
            return gone
        time.sleep(0.1)
    return []


def _is_gone(process: int) -> bool:
    """Whether a process has ended, even if nobody has asked for its exit status yet."""
    try:
        os.kill(process, 0)
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in ("Z", "X")
    except ProcessLookupError:
        return True
    except (OSError, IndexError):  # not ours, or a system without /proc
        return False


def choose_device(device: str, local_rank: int = 0) -> torch.device:
    """Return the device by name; "auto" is this process's GPU where there is one."""
    if device == "auto":
        # a task of Slurm may see no other GPU than its own
        device = f"cuda:{local_rank % torch.cuda.device_count()}" if torch.cuda.is_available() else "cpu"
    try:
        chosen = torch.device(device)
        torch.empty(1, device=chosen)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"device {device!r} cannot be used ({reason}); try 'auto' or 'cpu'") from None
    return chosen

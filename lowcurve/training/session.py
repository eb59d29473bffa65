"""What does a training work on, and where does it stand? Everything that a checkpoint keeps, in one place."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from lowcurve.data import Dataset
from lowcurve.data.loader import Batches, batches
from lowcurve.errors import UserError
from lowcurve.training.average import WeightAverage
from lowcurve.training.checkpoint import (
    Checkpoint,
    Position,
    load_weights,
    restore_training,
    save_checkpoint,
    training_tensors,
)
from lowcurve.training.compiled import CompiledStep
from lowcurve.training.config import Config
from lowcurve.training.distributed import World
from lowcurve.training.divergence import advice
from lowcurve.training.log import Meter, rows_before
from lowcurve.training.runs import Run
from lowcurve.training.smoothing import Ceilings
from lowcurve.training.step import TrainingStep

_AVERAGE = "average."


@dataclass
class Session:
    """What training works on, and where it stands: `step` steps into `epoch`."""

    config: Config
    world: World
    run: Run
    dataset: Dataset
    model: nn.Module
    training_step: TrainingStep | CompiledStep  # of the model, or of the model behind DistributedDataParallel
    optimizer: torch.optim.Optimizer
    meter: Meter
    ceilings: Ceilings
    average: WeightAverage | None = None
    epoch: int = 0
    step: int = 0
    seconds: float = 0.0
    saved: float = field(default_factory=time.monotonic)
    last: Mapping[str, Tensor] = field(default_factory=dict)  # summands of the loss in the last step
    healthy: Mapping[str, float] = field(default_factory=dict)  # their means at the last reading that was healthy

    @property
    def result(self) -> nn.Module:
        """The model that is judged and kept: the average of weights where there is one."""
        return self.model if self.average is None else self.average.model

    def loader(self) -> Batches:
        """Return the batches of the present epoch."""
        augmentation = self.config.data.augmentation
        return batches(
            self.dataset.train,
            self.config.train.batch_size,
            seed=self.config.train.seed,
            epoch=self.epoch,
            augmentation=self.dataset.augmentation if augmentation is None else augmentation,
            rank=self.world.rank,
            world=self.world.size,
            device=self.world.device,
        )

    def save(self) -> None:
        """Write a checkpoint, unless the weights are no longer numbers."""
        if not all(torch.isfinite(weight).all() for weight in self.model.parameters()):
            raise self.diverged(math.nan)
        sums = self.world.total(self.meter.sums)
        if self.world.first:
            tensors = {**training_tensors(self.model, self.optimizer), "meter": sums}
            if self.average is not None:
                tensors |= {_AVERAGE + name: tensor for name, tensor in self.average.model.state_dict().items()}
            total = self.epoch * len(self.loader()) + self.step
            position = Position(epoch=self.epoch, step=self.step, total=total, seconds=self.seconds)
            save_checkpoint(self.run.folder / "checkpoints", Checkpoint(position, tensors))
        self.saved = time.monotonic()

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go back to a checkpoint."""
        restore_training(checkpoint, self.model, self.optimizer)
        sums, position = checkpoint.tensors.get("meter"), checkpoint.position
        if sums is None or (sums.dtype, sums.shape) != (torch.float64, self.meter.sums.shape):
            raise UserError(f"checkpoint {position.total} belongs to another method; start the run anew")
        if self.average is not None:
            kept = {
                name.removeprefix(_AVERAGE): tensor
                for name, tensor in checkpoint.tensors.items()
                if name.startswith(_AVERAGE)
            }
            load_weights(self.average.model, kept, f"checkpoint {position.total} (the average)")
        if self.world.first:  # the sums of all processes
            self.meter.sums.copy_(sums)
        rows_before(self.run.folder, position.epoch)  # refused before anything is written
        self.epoch, self.step, self.seconds = position.epoch, position.step, position.seconds

    def read(self) -> dict[str, float]:
        """Return the means of the epoch so far; stop where the loss is no number or far above that of guessing."""
        means = self.meter.means(self.world.total(self.meter.sums))
        guessing = math.log(max(self.dataset.num_classes, 2))
        if not math.isfinite(means["loss"]) or means["cross_entropy"] > 100 * guessing:
            raise self.diverged(means["loss"])
        self.healthy = means
        return means

    def diverged(self, loss: float) -> UserError:
        """Say that training has failed, why, and what to try."""
        last = {name: float(value) for name, value in self.last.items()}
        return UserError(
            f"training diverged: loss {loss:.4g} in epoch {self.epoch}, step {self.step}. The last good "
            f"checkpoint is in {self.run.folder / 'checkpoints'}. {advice(self.config, last, self.healthy)}"
        )

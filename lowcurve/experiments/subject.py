"""A trained run as something to measure: its model, its data, and fixed samples of them."""

from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor, nn

    from lowcurve.data.dataset import Dataset, Split
    from lowcurve.experiments.grid import Cell

SEED = 0  # of the choice of samples and of the attacks' and the noise's random numbers


class Subject:
    """A trained run to be measured: its model in eval mode, and samples of its data."""

    def __init__(self, cell: "Cell") -> None:
        self.cell = cell

    @cached_property
    def model(self) -> "nn.Module":
        """The trained model."""
        from lowcurve.training.network import own_factory
        from lowcurve.training.runs import load

        return load(self.cell.folder, factory=own_factory(self.cell.config))  # named by the user, not by the folder

    @cached_property
    def dataset(self) -> "Dataset":
        """The run's data, with the run's limits."""
        from lowcurve.data import load_dataset

        data = self.cell.config.data
        return load_dataset(data.name, data.dir).subset(data.limit_train, data.limit_test)

    def split(self, name: str = "test") -> "Split":
        """Return the train or the test split."""
        return self.dataset.train if name == "train" else self.dataset.test

    def samples(self, count: int) -> "tuple[Tensor, Tensor]":
        """Return `count` test samples, the same for every run on this data."""
        return self.split().subset(count, SEED).batch(slice(None))

    def accuracy(self, split: str = "test") -> float:
        """Return the accuracy on a whole split."""
        from lowcurve.training.loop import accuracy_and_loss

        return accuracy_and_loss(self.model, self.split(split))[0]

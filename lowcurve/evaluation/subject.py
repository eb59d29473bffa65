"""What is measured, attacked or certified: a finished run, `package:factory`, or a library's model (`hf:`, `timm:`)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from lowcurve.errors import UserError
from lowcurve.files import make_folder, own_folder

if TYPE_CHECKING:
    from torch import Tensor, nn

    from lowcurve.data.dataset import Dataset, Split
    from lowcurve.factory import Factory

SEED = 0  # of the choice of samples and of the attacks' and the noise's random numbers


@dataclass(frozen=True)
class Subject:
    """A model in eval mode, the data to judge it on, its name, and its run folder where it has one."""

    model: nn.Module
    dataset: Dataset
    name: str
    folder: Path | None

    def split(self, name: str = "test") -> Split:
        """Return the train or the test split."""
        return self.dataset.train if name == "train" else self.dataset.test

    def samples(self, count: int) -> tuple[Tensor, Tensor]:
        """Return `count` test samples, the same for every model on this data."""
        return self.split().subset(count, SEED).batch(slice(None))

    def accuracy(self, split: str = "test") -> float:
        """Return the accuracy on a whole split."""
        from lowcurve.training.loop import accuracy_and_loss

        return accuracy_and_loss(self.model, self.split(split))[0]

    def place(self, output: Path | None, name: str) -> Path | None:
        """Make the folder for a verb's files: `output`, or `name` in the run's folder; None where there is neither.

        It is made before the work, so that a full disk or a wrong place shows now.
        """
        if output is not None:
            return make_folder(output)
        return own_folder(self.folder, name) if self.folder else None


def resolve(
    target: str | Path, data: str | None = None, data_dir: Path | None = None, trust: Factory | None = None
) -> Subject:
    """Load the model that `target` names; the data set is `data`, or the one that the run was trained on.

    A run's files may name a function that makes its network: it is run only if the user names it too, as `trust`.
    """
    from lowcurve.data import load_dataset
    from lowcurve.factory import load_factory

    if Path(target).is_dir():
        from lowcurve.training.runs import load, load_config

        config = load_config(target)
        dataset = load_dataset(data or config.data.name, data_dir or config.data.dir)
        if data is None:  # the samples that the run was trained and tested on
            dataset = config.data.parts(dataset)
        found = Subject(load(target, factory=trust), dataset, Path(target).name, Path(target))
    elif data is None:
        load_factory(str(target))
        raise UserError(f"{target} is no run, so its data set is unknown: add --data NAME, for example --data digits")
    else:
        dataset = load_dataset(data, data_dir)
        found = Subject(_made(str(target), dataset), dataset, str(target), None)
    check_model(found.model, found.dataset.test.batch(slice(2))[0], found.dataset.num_classes)
    return found


def _made(target: str, dataset: Dataset) -> nn.Module:
    """Return the model that a function or a library makes, as one that maps pixels to logits."""
    import torch

    from lowcurve.factory import load_factory
    from lowcurve.outputs import returning_logits

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)  # new weights are the same every time
        model = load_factory(target, dataset.input_size, dataset.num_classes).eval()
    return returning_logits(model, dataset.test.batch(slice(1))[0])


def check_model(model: nn.Module, x: Tensor, num_classes: int = 1) -> None:
    """Run the model on two samples; refuse it where it does not return a row of finite scores for each."""
    import torch

    from lowcurve import checks
    from lowcurve.observe import observing
    from lowcurve.outputs import ask, logits_of, refuse_batch_statistics

    checks.usable(model)
    refuse_batch_statistics(model)
    device = next((weight.device for weight in model.parameters()), x.device)
    with observing(model), torch.no_grad():
        logits = logits_of(checks.run(model, x.to(device, copy=True), partial(ask, model)))
    checks.logits(logits, len(x))
    if logits.shape[1] < num_classes:
        raise UserError(
            f"expected a model with a score for each of {num_classes} classes, got {logits.shape[1]} scores; "
            "choose the data set that it was trained for"
        )

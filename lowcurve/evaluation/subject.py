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

    def hits(self, split: str = "test") -> Tensor:
        """Return of each sample of a whole split whether it is classified as labeled."""
        import torch

        from lowcurve.data.loader import batches

        device = next((weight.device for weight in self.model.parameters()), torch.device("cpu"))
        parts = batches(self.split(split), 500, seed=0, epoch=0, shuffle=False, device=device)
        with torch.no_grad():
            return torch.cat([self.model(x).argmax(1) == y for x, y in parts]).cpu()

    def place(self, output: Path | None, name: str) -> Path | None:
        """Make the folder for a verb's files: `output`, or `name` in the run's folder; None where there is neither.

        It is made before the work, so that a full disk or a wrong place shows now.
        """
        if output is not None:
            return make_folder(output)
        return own_folder(self.folder, name) if self.folder else None


def find_subject(
    target: str | Path, data: str | None = None, data_dir: Path | None = None, trust: Factory | None = None
) -> Subject:
    """Load the model that `target` names; the data set is `data`, or the one that the run was trained on.

    A run's files may name a function that makes its network: it is run only if the user names it too, as `trust`.
    """
    from lowcurve.training.saving import is_saved

    place = Path(target)
    if not place.is_dir():
        found = _of_maker(str(target), data, data_dir)
    elif is_saved(place):
        found = _of_saved(place, data, data_dir, trust)
    else:
        found = _of_run(place, data, data_dir, trust)
    check_model(found.model, found.dataset.test.batch(slice(2))[0], found.dataset.num_classes)
    return found


def _of_run(folder: Path, data: str | None, data_dir: Path | None, trust: Factory | None) -> Subject:
    """Load a run, and the samples that it was trained and tested on where no other data are named."""
    from lowcurve.data import load_dataset
    from lowcurve.training.runs import load, load_config

    config = load_config(folder)
    dataset = load_dataset(data or config.data.name, data_dir or config.data.dir)
    if data is None:
        dataset = config.data.parts(dataset)
    return Subject(load(folder, factory=trust), dataset, folder.name, folder)


def _of_saved(folder: Path, data: str | None, data_dir: Path | None, trust: Factory | None) -> Subject:
    """Load what `save` has kept into the network that `trust` makes."""
    from lowcurve.data import load_dataset
    from lowcurve.factory import load_factory
    from lowcurve.outputs import returning_logits
    from lowcurve.training.runs import load

    if data is None or trust is None:
        raise UserError(
            f"{folder} holds the weights of a saved model: add --data NAME, and --trust package:factory, hf:… or "
            "timm:… for its original network"
        )
    dataset = load_dataset(data, data_dir)
    model = load(folder, model=load_factory(trust, dataset.input_size, dataset.num_classes))
    return Subject(returning_logits(model, dataset.test.batch(slice(1))[0]), dataset, folder.name, None)


def _of_maker(target: str, data: str | None, data_dir: Path | None) -> Subject:
    """Make the model that a function or a library names."""
    from lowcurve.data import load_dataset
    from lowcurve.factory import load_factory

    if data is None:
        load_factory(target)
        raise UserError(f"{target} is no run, so its data set is unknown: add --data NAME, for example --data digits")
    dataset = load_dataset(data, data_dir)
    return Subject(_made(target, dataset), dataset, target, None)


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

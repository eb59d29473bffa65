"""How much accuracy is left over a whole data set, attack by attack and radius by radius?"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from lowcurve.attacks import ATTACKS, attack, ball, flags, verify
from lowcurve.attacks.storage import Storage, opened
from lowcurve.attacks.table import AttackedSample, Evaluation
from lowcurve.data.dataset import Split
from lowcurve.digest import digest, model_digest
from lowcurve.errors import UserError, unknown_name
from lowcurve.observe import observing
from lowcurve.outputs import classifier
from lowcurve.progress import track

RADII = (0.05, 0.1, 0.15, 0.2)  # the paper's, for ℓ₂
LOOKED_AT = 256  # samples that the sanity flags look at


def evaluate(
    model: nn.Module,
    split: Split,
    attacks: Sequence[str] = ("pgd",),
    radii: Sequence[float] = RADII,
    *,
    norm: float = 2,
    steps: Mapping[str, int] | None = None,
    restarts: int = 1,
    seed: int = 0,
    batch_size: int = 256,
    folder: Path | None = None,
) -> Evaluation:
    """Attack every sample of `split` with every attack at every radius, each independently of the others.

    `steps` overrides the default budget by attack, such as {"square": 1000}. With a `folder`, each row is on
    disk as soon as its batch is done; the same call again, after a kill or with further attacks or radii,
    computes what is missing and gives what an uninterrupted run would have given. One process at a time works in
    a folder; another model, split, norm, seed or number of restarts needs another folder.
    """
    if not attacks or not radii or batch_size < 1:
        raise UserError(
            "expected at least one attack, at least one radius and a batch size from 1 on, "
            f"got attacks {list(attacks)}, radii {list(radii)} and {batch_size}"
        )
    attacks, radii = tuple(dict.fromkeys(attacks)), tuple(dict.fromkeys(map(float, radii)))
    job = _Job(classifier(model), split, _budgets(attacks, steps or {}), verify.check_norm(norm), restarts, seed)
    with opened(folder, job.settings()) if folder else nullcontext() as storage:
        return _complete(job, storage, radii, batch_size)


def _complete(job: "_Job", storage: Storage | None, radii: Sequence[float], batch_size: int) -> Evaluation:
    """Compute the rows that are missing, and conclude."""
    rows = storage.read() if storage else []
    done = {(row.attack, row.steps, row.eps, row.sample) for row in rows}
    batches = torch.arange(len(job.split)).split(batch_size)
    parts = [(name, eps, batch) for batch in batches for name in job.budgets for eps in radii]
    shown = track(parts, "attacking", size=lambda part: len(part[2]), note=lambda part: f"{part[0]} at {part[1]:g}")
    for name, eps, batch in shown:
        missing = [i for i in batch.tolist() if (name, job.budgets[name], eps, i) not in done]
        if missing:
            new = job.rows(name, eps, missing)
            rows += new
            if storage:
                storage.append(new)
    evaluation = job.conclude(rows, radii)
    if storage:
        storage.finish(evaluation)
    return evaluation


def _budgets(attacks: Sequence[str], steps: Mapping[str, int]) -> dict[str, int]:
    """Return the steps of every attack asked for: its own or those of `steps`."""
    for name in (*attacks, *steps):
        if name not in ATTACKS:
            raise unknown_name("attack", name, ATTACKS)
    return {name: steps.get(name, ATTACKS[name].steps) for name in attacks}


@dataclass(frozen=True)
class _Job:
    """What is attacked and how; everything here but the budgets is the same for all rows of a folder."""

    model: nn.Module
    split: Split
    budgets: dict[str, int]
    norm: float
    restarts: int
    seed: int

    def settings(self) -> dict[str, str | int]:
        """Return what a folder's rows depend on, for comparison when it is found again."""
        return {
            "model": model_digest(self.model),
            "data": digest(self.split.images, self.split.labels),
            "norm": str(self.norm),
            "restarts": self.restarts,
            "seed": self.seed,
        }

    def batch(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return samples and labels on the model's device."""
        device = next((tensor.device for tensor in self.model.state_dict().values()), torch.device("cpu"))
        x, y = self.split.batch(torch.as_tensor(indices))
        return x.to(device), y.to(device)

    def rows(self, name: str, eps: float, indices: Sequence[int]) -> list[AttackedSample]:
        """Attack some samples of the split and return a row for each."""
        x, y = self.batch(indices)
        result = attack(
            self.model, x, y, name, eps=eps, norm=self.norm,
            steps=self.budgets[name], restarts=self.restarts, seed=self.seed,
        )  # fmt: skip
        with observing(self.model), torch.no_grad():
            clean, predicted = self.model(x).argmax(1), self.model(result.adversarial).argmax(1)
        away = ball.distance(result.adversarial, x, self.norm)
        columns = [tensor.tolist() for tensor in (y, clean, result.success, predicted, away)]
        return [
            AttackedSample(index, label, before, name, self.budgets[name], eps, success, after, distance)
            for index, label, before, success, after, distance in zip(indices, *columns, strict=True)
        ]

    def conclude(self, rows: list[AttackedSample], radii: Sequence[float]) -> Evaluation:
        """Put the rows that were asked for in order, and raise the flags."""
        order = {name: place for place, name in enumerate(self.budgets)}
        wanted = [row for row in rows if self.budgets.get(row.attack) == row.steps and row.eps in radii]
        wanted.sort(key=lambda row: (order[row.attack], row.eps, row.sample))
        evaluation = Evaluation(tuple(wanted), self.norm)
        x, y = self.batch(range(min(LOOKED_AT, len(self.split))))
        return replace(evaluation, flags=(*flags.of_model(self.model, x, y), *flags.of_table(evaluation)))

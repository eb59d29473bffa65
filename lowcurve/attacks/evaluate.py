"""How much accuracy is left over a whole data set, attack by attack and radius by radius?"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from lowcurve.attacks import ATTACKS, attack, ball, flags, verify
from lowcurve.attacks.storage import Storage, fingerprint, model_fingerprint
from lowcurve.attacks.table import Evaluation, Row
from lowcurve.data.dataset import Split
from lowcurve.errors import UserError, unknown_name
from lowcurve.modes import observing
from lowcurve.progress import track

RADII = (0.05, 0.1, 0.15, 0.2)  # the paper's, for ℓ₂
PROBE = 256  # samples that the sanity flags look at


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

    `steps` overrides the default budget by attack, such as {"square": 1000}. With a `folder`, each row is on disk
    as soon as its batch is done; the same call again, after a kill or with further attacks or radii, computes what
    is missing, and gives what an uninterrupted run would have given. Another model, split, norm, seed or number of
    restarts needs another folder.
    """
    norm = verify.check_norm(norm)
    budgets = {name: (steps or {}).get(name, _entry(name)) for name in attacks}
    if not attacks or not radii or batch_size < 1:
        raise UserError("expected at least one attack, one radius and a batch size of 1")
    storage = None
    if folder is not None:
        settings = {
            "model": model_fingerprint(model),
            "data": fingerprint(split.images, split.labels),
            "norm": str(norm),
            "restarts": restarts,
            "seed": seed,
        }
        storage = Storage(folder, settings)
    rows = storage.read() if storage else []
    done = {(row.attack, row.steps, row.eps, row.sample) for row in rows}
    jobs = [
        (name, float(eps), torch.arange(start, min(start + batch_size, len(split))))
        for start in range(0, len(split), batch_size)
        for name in attacks
        for eps in radii
    ]
    for name, eps, batch in track(jobs, "attacking"):
        missing = [i for i in batch.tolist() if (name, budgets[name], eps, i) not in done]
        if missing:
            new = list(_attack_batch(model, split, missing, name, eps, norm, budgets[name], restarts, seed))
            rows += new
            if storage:
                storage.append(new)
    return _conclude(model, split, rows, budgets, radii, norm, storage)


def _entry(name: str) -> int:
    if name not in ATTACKS:
        raise unknown_name("attack", name, ATTACKS)
    return ATTACKS[name].steps


def _batch(model: nn.Module, split: Split, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
    device = next((tensor.device for tensor in model.state_dict().values()), torch.device("cpu"))
    x, y = split.batch(torch.as_tensor(indices))
    return x.to(device), y.to(device)


def _attack_batch(
    model: nn.Module,
    split: Split,
    indices: Sequence[int],
    name: str,
    eps: float,
    norm: float,
    steps: int,
    restarts: int,
    seed: int,
) -> Iterator[Row]:
    """Attack some samples of the split and yield a row for each."""
    x, y = _batch(model, split, indices)
    result = attack(model, x, y, name, eps=eps, norm=norm, steps=steps, restarts=restarts, seed=seed)
    with observing(model), torch.no_grad():
        clean, predicted = model(x).argmax(1), model(result.adversarial).argmax(1)
    away = ball.distance(result.adversarial, x, norm)
    columns = (y, clean, result.success, predicted, away)
    for index, label, before, success, after, far in zip(indices, *(c.tolist() for c in columns), strict=True):
        yield Row(index, label, before, name, steps, eps, success, after, far)


def _conclude(
    model: nn.Module,
    split: Split,
    rows: list[Row],
    budgets: Mapping[str, int],
    radii: Sequence[float],
    norm: float,
    storage: Storage | None,
) -> Evaluation:
    """Put the rows that were asked for in order, raise the flags and write the summary."""
    order = {name: place for place, name in enumerate(budgets)}
    wanted = [row for row in rows if budgets.get(row.attack) == row.steps and row.eps in radii]
    wanted.sort(key=lambda row: (order[row.attack], row.eps, row.sample))
    evaluation = Evaluation(tuple(wanted), norm)
    x, y = _batch(model, split, range(min(PROBE, len(split))))
    evaluation = replace(evaluation, flags=(*flags.probe(model, x, y), *flags.compare(evaluation)))
    if storage:
        storage.finish(evaluation)
    return evaluation

"""In what order does training see the samples? One permutation per (seed, epoch), cut across ranks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lowcurve.data.augment import AUGMENTATIONS
from lowcurve.data.dataset import Split, to_unit
from lowcurve.errors import UserError, unknown_name
from lowcurve.random import generator


@dataclass(frozen=True, eq=False)
class Batches:
    """An iterable of (x, y) with a length; see :func:`batches`."""

    split: Split
    batch_size: int
    seed: int
    epoch: int
    augmentation: tuple[str, ...]
    shuffle: bool
    rank: int
    world: int
    device: torch.device

    def __len__(self) -> int:
        return len(self._shards())

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        rng = generator(self.seed, self.epoch)
        count = len(self.split)
        order = torch.randperm(count, generator=rng) if self.shuffle else torch.arange(count)
        draws = torch.randint(2**31, (len(self.augmentation), count), generator=rng)
        for shard in self._shards():
            indices = order[shard]
            images = self.split.images.index_select(0, indices).to(self.device, non_blocking=True)
            for name, draw in zip(self.augmentation, draws, strict=True):
                images = AUGMENTATIONS[name](images, draw[shard].to(self.device))
            yield to_unit(images), self.split.labels[indices].to(self.device, non_blocking=True)

    def _shards(self) -> list[slice]:
        """Return this rank's part of each global batch, as positions in the permutation."""
        count, shards = len(self.split), []
        for start in range(0, count, self.batch_size):
            size = min(self.batch_size, count - start)
            if self.shuffle:  # all ranks step together: equal parts, no part that batch norm cannot use
                part = size // self.world
                if part > 1 or size == self.batch_size or start == 0:
                    shards.append(slice(start + self.rank * part, start + (self.rank + 1) * part))
            else:  # evaluation counts each sample once
                first, last = (start + size * r // self.world for r in (self.rank, self.rank + 1))
                if last > first:
                    shards.append(slice(first, last))
        return shards


def batches(
    split: Split,
    batch_size: int,
    *,
    seed: int,
    epoch: int,
    augmentation: Sequence[str] = (),
    shuffle: bool = True,
    rank: int = 0,
    world: int = 1,
    device: torch.device | str = "cpu",
) -> Batches:
    """Iterate over one epoch in batches (x float32 in [0, 1], y) on `device`; `len()` is the number of steps.

    `batch_size` is global: each of the `world` ranks yields its share of the same batch, with the same
    augmentation, so the union over ranks does not depend on `world`. Everything is fixed by (seed, epoch).

    With `shuffle` (training) all ranks get equal shares: at most world − 1 samples of the last batch, and a
    last batch of one sample per rank, are left out. Without it (evaluation) each sample comes exactly once.
    """
    for name in augmentation:
        if name not in AUGMENTATIONS:
            raise unknown_name("augmentation", name, AUGMENTATIONS)
    if augmentation and split.images.ndim != 4:
        raise UserError(
            f"augmentation {', '.join(augmentation)} needs images (N, C, H, W), "
            f"got samples of shape {tuple(split.images.shape[1:])}; leave it out"
        )
    if batch_size < 1 or not 0 <= rank < world or (shuffle and min(batch_size, len(split)) < world):
        raise UserError(
            f"each of {world} ranks needs at least one sample per batch, got rank {rank}, batch size "
            f"{batch_size} and {len(split)} samples; use larger batches or fewer processes"
        )
    return Batches(split, batch_size, seed, epoch, tuple(augmentation), shuffle, rank, world, torch.device(device))

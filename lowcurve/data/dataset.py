"""What is a data set here? Two splits of labelled samples with values in [0, 1], and their names."""

import re
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lowcurve.data.pixels import pixels
from lowcurve.errors import UserError
from lowcurve.random import generator

HELD_OUT = "held-out"  # what samples are called that were taken out of the training set to judge on


@dataclass(frozen=True, eq=False)
class Split:
    """Samples: `images` is uint8 (0 to 255) or float32 in [0, 1], NCHW or (N, d); `labels` is int64, (N,).

    Images keep the bytes of their source; :meth:`batch` converts, so a set needs a quarter of the memory.

    >>> split = Split(torch.tensor([[0], [255]], dtype=torch.uint8), torch.tensor([0, 1]))
    >>> split.batch(torch.tensor([1]))
    (tensor([[1.]]), tensor([1]))
    """

    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if not isinstance(self.images, Tensor) or not isinstance(self.labels, Tensor):
            kinds = f"{type(self.images).__name__} and {type(self.labels).__name__}"
            raise UserError(f"a split has tensors of images and labels, got {kinds}; use torch.from_numpy")
        if self.images.dtype not in (torch.uint8, torch.float32) or self.labels.dtype != torch.int64:
            raise UserError(
                "a split has uint8 or float32 images and int64 labels, "
                f"got {self.images.dtype} and {self.labels.dtype}; convert them first"
            )
        if self.labels.ndim != 1 or len(self.images) != len(self.labels) or not len(self.labels):
            raise UserError(
                "a split has one label per image and at least one image, "
                f"got images {tuple(self.images.shape)} and labels {tuple(self.labels.shape)}"
            )
        if self.labels.min() < 0:
            raise UserError(f"labels count from 0, got {int(self.labels.min())}; number the classes anew")
        if self.images.is_floating_point() and self.images.numel():
            pixels(self.images)

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indices: Tensor | slice) -> tuple[Tensor, Tensor]:
        """Return the samples at `indices` as float32 in [0, 1], and their labels."""
        if isinstance(indices, slice):
            indices = torch.arange(len(self))[indices]  # so that a batch is never a view of the split
        return to_unit(self.images.index_select(0, indices)), self.labels.index_select(0, indices)

    def subset(self, count: int | float | None, seed: int = 0) -> "Split":
        """Return `count` samples (a float: that share) drawn by `seed`, each class with its share; None keeps all."""
        count = how_many(count, len(self))
        if count == len(self):
            return self
        chosen = stratified(self.labels, count, seed)
        return Split(self.images[chosen], self.labels[chosen])


@dataclass(frozen=True, eq=False)
class Dataset:
    """A train and a test split; `augmentation` is what is customary in training (`lowcurve.data.augment`).

    `judged` says to people what the test split holds: "test" samples, or "held-out" ones of the training set.
    """

    name: str
    title: str
    train: Split
    test: Split
    class_names: tuple[str, ...]
    augmentation: tuple[str, ...] = ()
    judged: str = "test"

    def __post_init__(self) -> None:
        for kind, split in (("train", self.train), ("test", self.test)):
            low, high = int(split.labels.min()), int(split.labels.max())
            if low < 0 or high >= self.num_classes:
                raise UserError(
                    f"labels of {self.title} run from 0 to {self.num_classes - 1}, "
                    f"got {low} to {high} in the {kind} split"
                )
        if self.train.images.shape[1:] != self.test.images.shape[1:]:
            raise UserError(
                f"train and test samples of {self.title} have one shape, got {self.input_size} and "
                f"{tuple(self.test.images.shape[1:])}"
            )

    @property
    def num_classes(self) -> int:
        """The number of classes."""
        return len(self.class_names)

    @property
    def input_size(self) -> tuple[int, ...]:
        """The shape of one sample, (C, H, W) or (d,)."""
        return tuple(self.train.images.shape[1:])

    def mislabeled(self, share: float, seed: int) -> "Dataset":
        """Return the data set with a share of its training labels, drawn by `seed`, replaced by other classes."""
        if not share:
            return self
        rng, labels = generator(seed, len(self.train)), self.train.labels.clone()
        chosen = torch.randperm(len(labels), generator=rng)[: round(share * len(labels))]
        labels[chosen] += torch.randint(1, self.num_classes, (len(chosen),), generator=rng)
        return replace(self, train=Split(self.train.images, labels % self.num_classes))

    def held_out(self, count: int | float | None, seed: int = 0) -> "Dataset":
        """Return `count` training samples (a float: that share), each class with its share, in place of the test split.

        Settings are chosen on them, so that the test samples stay unread.

        What is left to train on is what `subset` of as many samples draws by the same seed.
        """
        if count is None:
            return self
        count = how_many(count, len(self.train)) if isinstance(count, float) else count
        if not 1 <= count <= len(self.train) - 2:
            raise UserError(
                f"expected 1 to {len(self.train) - 2} samples to hold out of {len(self.train)}, got {count}; "
                "training needs the others"
            )
        chosen = torch.zeros(len(self.train), dtype=torch.bool)
        chosen[stratified(self.train.labels, len(self.train) - count, seed)] = True
        train, held = (Split(self.train.images[part], self.train.labels[part]) for part in (chosen, ~chosen))
        title = subset_title(self.title, len(train), len(held), "validation")
        return replace(self, train=train, test=held, title=title, judged=HELD_OUT)

    def subset(self, train: int | float | None = None, test: int | None = None, seed: int = 0) -> "Dataset":
        """Return a smaller data set whose title says so; the splits are drawn by :meth:`Split.subset`."""
        smaller = replace(self, train=self.train.subset(train, seed), test=self.test.subset(test, seed))
        if len(smaller.train) == len(self.train) and len(smaller.test) == len(self.test):
            return self
        return replace(smaller, title=subset_title(self.title, len(smaller.train), len(smaller.test)))


def how_many(count: int | float | None, total: int) -> int:
    """Return how many of `total` samples are meant by a number, a share (a float up to 1) or None, which is all.

    >>> how_many(5, 100), how_many(0.25, 100), how_many(500, 100), how_many(None, 100)
    (5, 25, 100, 100)
    """
    if isinstance(count, float):
        if not 0 < count <= 1:
            raise UserError(f"expected a share of the samples in (0, 1] or a whole number of them, got {count}")
        count = max(1, round(count * total))
    if count is not None and count < 1:
        raise UserError(f"expected at least 1 sample, got {count}; leave the number out to use all samples")
    return total if count is None else min(count, total)


def to_unit(images: Tensor) -> Tensor:
    """Convert uint8 images to float32 in [0, 1]; float images are in [0, 1] already."""
    return images.to(torch.float32).div_(255) if images.dtype == torch.uint8 else images


def subset_title(title: str, train: int, test: int, judged: str = "test") -> str:
    """Name a part of a data set; `judged` is what it is judged on, "validation" where that was held out of training.

    >>> subset_title("CIFAR-10 (20,000/5,000 subset)", 2000, 500)
    'CIFAR-10 (2,000/500 subset)'
    """
    whole = re.sub(r" \([\d,]+/[\d,]+ subset\)$", "", title)
    whole = whole if judged == "test" else f"{whole} {judged}"
    return f"{whole} ({train:,}/{test:,} subset)"


def stratified(labels: Tensor, count: int, seed: int) -> Tensor:
    """Draw `count` sorted indices, ⌊count·n_c/N⌋ of class c; what is left goes to the largest remainders.

    >>> stratified(torch.tensor([0, 0, 0, 0, 1, 1]), 3, seed=0).shape
    torch.Size([3])
    """
    rng = generator(seed, count)
    sizes = torch.bincount(labels)
    shares = sizes * count // len(labels)
    remainders = sizes * count % len(labels)
    shares[remainders.argsort(descending=True, stable=True)[: count - int(shares.sum())]] += 1
    order = torch.randperm(len(labels), generator=rng)
    chosen = [order[labels[order] == c][:share] for c, share in enumerate(shares.tolist()) if share]
    return torch.cat(chosen).sort().values


def hold_out(images: Tensor, labels: Tensor) -> tuple[Split, Split]:
    """Split samples into train and test, a fifth of each class, always alike."""
    test = stratified(labels, max(1, len(labels) // 5), seed=0)
    kept = torch.ones(len(labels), dtype=torch.bool)
    kept[test] = False
    return Split(images[kept], labels[kept]), Split(images[test], labels[test])

"""How are the official CIFAR files read? The python and the binary version, as archives or extracted."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from lowcurve.data import pickles
from lowcurve.data.archives import read_bytes, read_members
from lowcurve.data.dataset import Split
from lowcurve.data.files import Found, reading, require_labels
from lowcurve.errors import UserError

PIXELS = 3 * 32 * 32
REMEDY = "delete it and fetch the data set again (lowcurve data fetch)"
NAMES_10 = "airplane automobile bird cat deer dog frog horse ship truck"
NAMES_100 = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can
castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin
elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard
lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear
pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark
shrew skunk skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone
television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""
CIFAR10_CLASSES, CIFAR100_CLASSES = tuple(NAMES_10.split()), tuple(NAMES_100.split())

ImagesAndLabels = tuple[np.ndarray, np.ndarray]  # images (N, 3, 32, 32) uint8, labels (N,)


def parse_pickle(data: bytes, label_key: str) -> ImagesAndLabels:
    """Read one file of the python version: a dict with `data` (N, 3072) and a list of labels."""
    content = pickles.loads(data)
    if not isinstance(content, dict) or not isinstance(content.get("data"), pickles.ArrayStandIn):
        raise UserError("expected a pickled dict with an array 'data', got something else")
    labels = content.get(label_key)
    if not isinstance(labels, list) or not labels or not all(type(label) is int for label in labels):
        raise UserError(f"expected a list of integers {label_key!r}, got {type(labels).__name__}")
    return content["data"].numpy().reshape(len(labels), 3, 32, 32), np.array(labels, dtype=np.int64)


def parse_records(data: bytes, label_bytes: int) -> ImagesAndLabels:
    """Read one file of the binary version: records of label bytes (fine label last) and 3072 pixels."""
    size = label_bytes + PIXELS
    if not data or len(data) % size:
        raise UserError(f"expected records of {size:,} bytes, got {len(data):,} bytes, not a multiple")
    records = np.frombuffer(data, dtype=np.uint8).reshape(-1, size)
    return records[:, label_bytes:].reshape(-1, 3, 32, 32), records[:, label_bytes - 1].astype(np.int64)


@dataclass(frozen=True)
class PublishedVersion:
    """One published version: the archive, the directory in it, its files by split and their parser."""

    classes: int
    version: str
    archive: str
    directory: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    parse: Callable[[bytes], ImagesAndLabels]

    def find(self, folder: Path) -> Found | None:
        """Look for the extracted directory or the archive, in `folder` or beside it."""
        places = (folder, folder.parent)
        for directory in (*(place / self.directory for place in places), folder):
            files = tuple(directory / name for name in self.train + self.test)
            if all(file.is_file() for file in files):
                return Found(f"{self.version} files", files, partial(self._read, files))
        for archive in (place / self.archive for place in places):
            if archive.is_file():
                return Found(f"{self.version} archive", (archive,), partial(self._read, (archive,)))
        return None

    def _read(self, files: tuple[Path, ...]) -> tuple[Split, Split]:
        contents = self._members(files[0]) if files[0].name == self.archive else _contents(files)
        parsed = {}
        for path, data in contents:
            with reading(path, REMEDY):
                images, labels = self.parse(data)
                require_labels(labels, 0, self.classes - 1)
                parsed[path.name] = images, labels
        return _split([parsed[name] for name in self.train]), _split([parsed[name] for name in self.test])

    def _members(self, archive: Path) -> Iterator[tuple[Path, bytes]]:
        with reading(archive, REMEDY):
            names = [f"{self.directory}/{name}" for name in self.train + self.test]
            for name, data in read_members(archive, names):
                yield archive / name, data


def _contents(files: tuple[Path, ...]) -> Iterator[tuple[Path, bytes]]:
    for file in files:
        with reading(file, REMEDY):
            data = read_bytes(file)
        yield file, data


def _split(parts: list[ImagesAndLabels]) -> Split:
    images, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return Split(torch.from_numpy(images), torch.from_numpy(labels))


_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))

CIFAR10 = (
    PublishedVersion(
        10,
        "binary",
        "cifar-10-binary.tar.gz",
        "cifar-10-batches-bin",
        tuple(f"{name}.bin" for name in _BATCHES),
        ("test_batch.bin",),
        lambda data: parse_records(data, label_bytes=1),
    ),
    PublishedVersion(
        10,
        "python",
        "cifar-10-python.tar.gz",
        "cifar-10-batches-py",
        _BATCHES,
        ("test_batch",),
        lambda data: parse_pickle(data, "labels"),
    ),
)
CIFAR100 = (
    PublishedVersion(
        100,
        "binary",
        "cifar-100-binary.tar.gz",
        "cifar-100-binary",
        ("train.bin",),
        ("test.bin",),
        lambda data: parse_records(data, label_bytes=2),
    ),
    PublishedVersion(
        100,
        "python",
        "cifar-100-python.tar.gz",
        "cifar-100-python",
        ("train",),
        ("test",),
        lambda data: parse_pickle(data, "fine_labels"),
    ),
)
